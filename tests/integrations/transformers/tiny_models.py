"""Tiny models of random weights, computed by transformers' "eager" attention and by ours, in a process that interprets.

Each function returns None, or what differs. fp32: Triton's interpreter computes bf16 wrongly.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
import transformers

from autotune.integrations.transformers import NAME, register

TOLERANCE: Final = 3e-5  # of logits of up to 4
VOCABULARY: Final = 64
TOKENS: Final = 11
WIDTHS: Final = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED: Final = {**WIDTHS, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64}
TWO_KINDS: Final = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
LATENT: Final = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 2,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 1,
}
DECODERS: Final[dict[str, Callable[[], Any]]] = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "qwen3": lambda: transformers.Qwen3Config(**GROUPED),
    "gemma2": lambda: transformers.Gemma2Config(
        **GROUPED, sliding_window=5, query_pre_attn_scalar=16, attn_logit_softcapping=2.0
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(**GROUPED, **TWO_KINDS, query_pre_attn_scalar=16),
    "gemma4": lambda: transformers.Gemma4TextConfig(  # heads of 512 in its global layer
        **GROUPED, **TWO_KINDS, vocab_size_per_layer_input=VOCABULARY, hidden_size_per_layer_input=16
    ),
    "gpt-oss": lambda: transformers.GptOssConfig(**GROUPED, **TWO_KINDS, num_local_experts=2, num_experts_per_tok=1),
    "deepseek-v3": lambda: transformers.DeepseekV3Config(**WIDTHS, **LATENT, num_key_value_heads=4),
}

MIXED: Final = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
WINDOW: Final = {"sliding_window": 5}
FAMILIES: Final[dict[str, dict[str, Any]]] = {  # other decoders, by transformers' name of the kind of model
    **dict.fromkeys(("apertus", "glm4", "granite", "olmo2", "phi3", "qwen2"), GROUPED),
    **dict.fromkeys(("seed_oss", "smollm3", "starcoder2"), GROUPED),
    **dict.fromkeys(("cohere2", "exaone4", "ministral", "mistral", "olmo3"), GROUPED | WINDOW),
    **dict.fromkeys(("mixtral", "qwen3_moe"), GROUPED | MIXED),
    "deepseek_v2": {**WIDTHS, **LATENT, "num_key_value_heads": 4},
}


def prepared(model: Any) -> Any:
    """Return a model whose attention is not nearly even, which small random weights would make it."""
    for name, weights in model.named_parameters():
        if "sinks" in name:
            weights.data.normal_()
        elif weights.ndim > 1:
            weights.data.mul_(4)
    return model.eval()


def decoder(name: str) -> Any:
    register()
    torch.manual_seed(0)
    return prepared(transformers.AutoModelForCausalLM.from_config(DECODERS[name]()))


def prompts(rows: int = 3) -> torch.Tensor:
    return torch.randint(2, VOCABULARY, (rows, TOKENS), generator=torch.Generator().manual_seed(1))


def padding(side: str) -> torch.Tensor | None:
    """Return the padding mask of three rows: nothing at all, none on a side, some, nearly all."""
    if side == "none":
        return None
    mask = torch.ones(3, TOKENS, dtype=torch.long)
    mask[1, :4] = 0
    mask[2, :9] = 0
    return {"left": mask, "right": mask.flip(1), "ones": torch.ones_like(mask)}[side]


def difference(model: Any, call: Callable[[Any], torch.Tensor], ours: str = NAME) -> str | None:
    """Say how far what a call of the model returns is from the same by eager attention."""
    found = {}
    for name in ("eager", ours):
        model.set_attn_implementation(name)
        if model.config._attn_implementation != name:  # models that never ask for a function keep their own
            return f"the model computes by {model.config._attn_implementation!r} where {name!r} was set"
        with torch.no_grad():
            found[name] = call(model)
    if found["eager"].dtype == torch.long:
        return None if torch.equal(*found.values()) else f"{found}"
    error = float((found["eager"] - found[ours]).abs().max())
    return None if error < TOLERANCE else f"differs by {error} from values up to {float(found['eager'].abs().max())}"


def logits_failure(name: str, side: str) -> str | None:
    mask = padding(side)
    real = torch.ones(3, TOKENS, dtype=torch.bool) if mask is None else mask.bool()
    return difference(decoder(name), lambda model: model(prompts(), attention_mask=mask).logits[real])


def generation_failure(name: str, side: str, cache: str | None) -> str | None:
    options = {"max_new_tokens": 3, "do_sample": False, "cache_implementation": cache}
    return difference(decoder(name), lambda model: model.generate(prompts(), attention_mask=padding(side), **options))


def family_failure(name: str) -> str | None:
    """Compute a decoder of another family over padding on the left, then generate two tokens."""
    register()
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **FAMILIES[name])
    model, mask = prepared(transformers.AutoModelForCausalLM.from_config(config)), padding("left")
    assert mask is not None
    return difference(model, lambda model: model(prompts(), attention_mask=mask).logits[mask.bool()]) or difference(
        model, lambda model: model.generate(prompts(), attention_mask=mask, max_new_tokens=2, do_sample=False)
    )


def continued_failure(name: str, side: str, is_static: bool) -> str | None:
    """Compute a prompt in two parts over one cache: the second has fewer queries than keys."""
    mask = padding(side)
    assert mask is not None

    def call(model: Any) -> torch.Tensor:
        cache: Any = transformers.DynamicCache(config=model.config)
        if is_static:
            cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        first = model(prompts()[:, :6], attention_mask=mask[:, :6], cache=cache).logits
        second = model(prompts()[:, 6:], attention_mask=mask, cache=cache).logits
        return torch.cat([first, second], 1)[mask.bool()]

    return difference(decoder(name), call)


def packed_failure(name: str) -> str | None:
    """Compute rows of three sequences, which start where their positions do."""
    positions = torch.tensor([[*range(5), *range(4), *range(2)]]).expand(2, -1)
    return difference(decoder(name), lambda model: model(prompts(2), position_ids=positions, use_cache=False).logits)


def offsets_failure(name: str) -> str | None:
    """Compute a row of three sequences that offsets tell apart, beside each alone: not all models mask by positions."""
    ends = torch.tensor([0, 5, 9, 11])
    given = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 5, "max_length_k": 5, "use_cache": False}
    positions = torch.tensor([[*range(5), *range(4), *range(2)]])

    def call(model: Any) -> torch.Tensor:
        if model.config._attn_implementation == "autotune":
            together: torch.Tensor = model(prompts(1), position_ids=positions, **given).logits
            return together
        return torch.cat([model(part).logits for part in (prompts(1)[:, :5], prompts(1)[:, 5:9], prompts(1)[:, 9:])], 1)

    return difference(decoder(name), call)


def both_ways_failure() -> str | None:
    """Compute a decoder that its config turns into an encoder; padding sees what all see, as with eager."""
    register()
    torch.manual_seed(0)
    model = prepared(transformers.LlamaModel(transformers.LlamaConfig(**GROUPED, is_causal=False)))
    return difference(
        model, lambda model: model(prompts(), attention_mask=padding("left"), use_cache=False).last_hidden_state
    )


def modernbert_failure(side: str) -> str | None:
    """Compute windows both ways, whose width theirs counts otherwise than ours."""
    register()
    torch.manual_seed(0)
    special = {"eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    kinds = {"local_attention": 6, "layer_types": ["full_attention", "sliding_attention"]}
    model = prepared(transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**WIDTHS | special | kinds)))
    mask = padding(side)
    real = torch.ones(3, TOKENS, dtype=torch.bool) if mask is None else mask.bool()
    return difference(model, lambda model: model(prompts(), attention_mask=mask).logits[real])


def siglip_failure() -> str | None:
    register()
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = transformers.SiglipVisionConfig(**sizes, image_size=16, patch_size=4)
    text = transformers.SiglipTextConfig(**sizes, vocab_size=VOCABULARY, max_position_embeddings=16)
    pixels = torch.randn(2, 3, 16, 16)
    return difference(
        prepared(transformers.SiglipVisionModel(vision)), lambda model: model(pixels).last_hidden_state
    ) or difference(
        prepared(transformers.SiglipTextModel(text)),
        lambda model: model(prompts(), attention_mask=padding("right")).last_hidden_state,
    )


def whisper() -> Any:
    register()
    torch.manual_seed(0)
    layers = {f"{part}_layers": 2 for part in ("encoder", "decoder")}
    layers |= {f"{part}_attention_heads": 4 for part in ("encoder", "decoder")}
    layers |= {f"{part}_ffn_dim": 64 for part in ("encoder", "decoder")}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    lengths = {"max_source_positions": 12, "max_target_positions": 24, "num_mel_bins": 8}
    config = transformers.WhisperConfig(vocab_size=VOCABULARY, d_model=64, **layers, **special, **lengths)
    return prepared(transformers.WhisperForConditionalGeneration(config))


def whisper_failure() -> str | None:
    """Compute an encoder, a decoder, and its attention over what the encoder made; then generate."""
    model, sound = whisper(), torch.randn(2, 8, 24)
    return difference(
        model, lambda model: model(input_features=sound, decoder_input_ids=prompts(2)).logits
    ) or difference(model, lambda model: model.generate(sound, max_new_tokens=4, do_sample=False))


def bart_failure() -> str | None:
    """Compute a decoder's attention over what an encoder made of padded rows; then generate."""
    register()
    torch.manual_seed(0)
    layers = {f"{part}_layers": 1 for part in ("encoder", "decoder")}
    layers |= {f"{part}_attention_heads": 4 for part in ("encoder", "decoder")}
    layers |= {f"{part}_ffn_dim": 64 for part in ("encoder", "decoder")}
    special = {"pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 1, "forced_eos_token_id": None}
    config = transformers.BartConfig(vocab_size=VOCABULARY, d_model=64, eos_token_id=None, **layers, **special)
    model, given = prepared(transformers.BartForConditionalGeneration(config)), {"attention_mask": padding("right")}
    return difference(model, lambda model: model(prompts(), **given, decoder_input_ids=prompts()).logits) or difference(
        model, lambda model: model.generate(prompts(), **given, max_new_tokens=3, do_sample=False)
    )


def t5() -> Any:
    register()
    torch.manual_seed(0)
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
    special = {"pad_token_id": 0, "eos_token_id": None, "decoder_start_token_id": 1, "dropout_rate": 0.0}
    # Its scores are not scaled: weights as they are drawn make attention uneven enough.
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **special)).eval()


def t5_failure(side: str) -> str | None:
    """Compute an encoder, a decoder and its attention over the encoder, with biases of positions; then generate."""
    model, given = t5(), {"attention_mask": padding(side)}
    return difference(model, lambda model: model(prompts(), **given, decoder_input_ids=prompts()).logits) or difference(
        model, lambda model: model.generate(prompts(), **given, max_new_tokens=3, do_sample=False)
    )


def own_mask_failure(name: str, dtype_name: str) -> str | None:
    """Compute a mask of one's own, causal over two sequences in a row; eager attention takes numbers to add alone."""
    sequence = torch.arange(TOKENS) // 6
    seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril() & (sequence == sequence[:, None])
    hidden = torch.zeros(TOKENS, TOKENS).masked_fill(~seen, torch.finfo(torch.float32).min)

    def call(model: Any) -> torch.Tensor:
        is_ours = model.config._attn_implementation == "autotune"
        mask = seen if is_ours and dtype_name == "bool" else hidden
        logits: torch.Tensor = model(prompts(), attention_mask=mask.expand(3, 1, -1, -1), use_cache=False).logits
        return logits

    return difference(decoder(name), call)


def images_failure(side: str) -> str | None:
    """Compute tokens of two images that see each other both ways, in layers of a window and others."""
    register()
    torch.manual_seed(0)
    text = transformers.Gemma3TextConfig(**GROUPED, **TWO_KINDS, query_pre_attn_scalar=16)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = transformers.SiglipVisionConfig(**sizes, image_size=16, patch_size=4)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model, mask = prepared(transformers.Gemma3ForConditionalGeneration(config)), padding(side)
    real = torch.ones(3, TOKENS, dtype=torch.bool) if mask is None else mask.bool()
    images = torch.tensor([0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0]).repeat(3, 1)
    given = {"attention_mask": mask, "token_type_ids": images}
    return difference(model, lambda model: model(prompts(), **given).logits[real])


def compiled_failure(name: str) -> str | None:
    """Generate over a static cache, for which ``generate`` compiles the model on a GPU, and here on request."""
    import torch._dynamo.utils

    settings: Any = transformers.CompileConfig(backend="eager", mode="default", fullgraph=False)
    settings._compile_all_devices = True

    def call(model: Any) -> torch.Tensor:
        options: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False, "cache_implementation": "static"}
        if model.config._attn_implementation == "autotune":
            options["compile_config"] = settings
        tokens: torch.Tensor = model.generate(prompts(), attention_mask=padding("left"), **options)
        return tokens

    before = torch._dynamo.utils.counters["frames"]["ok"]
    failure = difference(decoder(name), call)
    return failure if torch._dynamo.utils.counters["frames"]["ok"] > before else "nothing was compiled"


def half_failure(name: str) -> str | None:
    """Compute fp16, whose rounding the two do in different places."""
    mask = padding("left")
    assert mask is not None
    model = decoder(name).half()
    found = []
    for implementation in ("eager", "autotune"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found.append(model(prompts(), attention_mask=mask).logits[mask.bool()].float())
    error = float((found[0] - found[1]).abs().max())
    return None if error < 0.03 else f"differs by {error} from values up to {float(found[0].abs().max())}"
