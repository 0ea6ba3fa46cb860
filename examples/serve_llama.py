"""A Llama of transformers answers a padded batch by our attention, checked against transformers' own.

    python examples/serve_llama.py [--model meta-llama/Llama-3.2-1B] [--new-tokens 32]

Without ``--model`` its weights are random and nothing is downloaded; without a GPU it is tiny and runs in Triton's
interpreter. It needs ``pip install ".[transformers]"``.
"""

import argparse
import os

import torch

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM  # noqa: E402

import autotune  # noqa: E402
from autotune.integrations.transformers import register  # noqa: E402

LENGTHS = (3, 11, 7)  # of the prompts, which padding makes equal


def random_llama() -> LlamaForCausalLM:
    """Return a small model on random weights, drawn wide enough that its tokens differ."""
    torch.manual_seed(0)
    width, heads = (1024, 16) if HAS_GPU else (64, 4)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8192 if HAS_GPU else 128,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=4 if HAS_GPU else 2,
            num_attention_heads=heads,
            num_key_value_heads=heads // 4,
            pad_token_id=0,
            eos_token_id=None,
            initializer_range=0.1,
        )
    )
    return model.to("cuda") if HAS_GPU else model


def padded_prompts(vocabulary: int) -> dict[str, torch.Tensor]:
    """Return random prompts with padding on the left, as generation wants them."""
    longest = max(LENGTHS)
    tokens = torch.randint(3, vocabulary, (len(LENGTHS), longest), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(longest) >= longest - torch.tensor(LENGTHS)[:, None]).long()
    return {"input_ids": tokens * mask, "attention_mask": mask}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a causal model's name or folder, instead of random weights")
    parser.add_argument("--new-tokens", type=int, default=32 if HAS_GPU else 4)
    arguments = parser.parse_args()
    register()
    if arguments.model:
        model = AutoModelForCausalLM.from_pretrained(arguments.model).to("cuda" if HAS_GPU else "cpu")
    else:
        model = random_llama()
    prompts = {name: tensor.to(model.device) for name, tensor in padded_prompts(model.config.vocab_size).items()}
    answers = {}
    for name in ("eager", "autotune"):
        model.set_attn_implementation(name)
        answers[name] = model.eval().generate(**prompts, max_new_tokens=arguments.new_tokens, do_sample=False)
    for answer in answers["autotune"][:, max(LENGTHS) :].tolist():
        print(*answer)
    print(f"kernels: {autotune.stats()}")
    same = (answers["eager"] == answers["autotune"])[:, max(LENGTHS) :]
    print(f"agreement with transformers' own attention {int(same.sum())} of {same.numel()} tokens")


if __name__ == "__main__":
    main()
