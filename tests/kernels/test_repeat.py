"""Arguments of repeated launches: each stands where the kernel has its name, which no launch checks."""

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest
import torch

from autotune.kernels import relaunch
from autotune.kernels.flash_attention import operand_repeat as operands
from autotune.kernels.flash_attention import repeat as dense
from autotune.kernels.flash_attention.gluon_hopper import forward as gluon
from autotune.kernels.flash_attention.triton.forward import flash_attention_forward
from autotune.kernels.flash_attention.triton_masked.forward import flash_attention_masked_forward
from autotune.kernels.flash_attention.triton_split_keys.forward import attend_shares, combine_shares
from autotune.kernels.flash_attention.triton_split_values.forward import flash_attention_columns_forward
from autotune.kernels.flash_attention.triton_split_width.forward import flash_attention_pieces_forward
from autotune.kernels.flash_attention_varlen.gluon_hopper.forward import HeadScales, varlen_attention_forward
from autotune.kernels.flash_attention_varlen.gluon_hopper.padded_rows import PaddedOutput, number_rows
from autotune.kernels.flash_attention_varlen.gluon_hopper.tile_table import write_tiles
from autotune.kernels.flash_attention_varlen.triton import repeat as varlen
from autotune.kernels.flash_attention_varlen.triton.forward import flash_attention_varlen_forward
from autotune.kernels.paged_decode.gluon_hopper_latent.forward import latent_decode_hopper
from autotune.kernels.paged_decode.triton import repeat as decode
from autotune.kernels.paged_decode.triton.combine import combine_partials
from autotune.kernels.paged_decode.triton.forward import paged_decode_flat, paged_decode_split
from autotune.kernels.paged_decode.triton_latent.forward import latent_decode_split
from autotune.kernels.paged_prefill.gluon_hopper.gather import gather_pages
from autotune.kernels.paged_prefill.triton import repeat as prefill
from autotune.kernels.paged_prefill.triton.forward import paged_prefill_forward
from autotune.kernels.relaunch import Described, PastLaunch
from autotune.kernels.tiles.partials import Partials
from autotune.kernels.workspace import Workspace

WHOLE: Final = torch.empty(2, 40)
BEGIN: Final = 32  # of a rest
STRIDES: Final = ("stride of keys", "stride of values")
SCALES: Final = HeadScales(None, None, *STRIDES)
FIXED: Final = tuple(SCALES)  # of what has none, as it was launched
PADDED: Final = PaddedOutput(None, None)
PARTIALS: Final = Partials(torch.empty(2, 4, 8), torch.empty(2, 2, 4), None)


class Repeated(NamedTuple):
    """A module that repeats, its launches, and what stands for each of their parameters that are no constants.

    ``needs_descriptors`` where no launch is made again without them.
    """

    repeat: str
    kernels: tuple[Any, ...]
    varying: tuple[dict[str, Any], ...]
    names: tuple[str, ...]
    needs_descriptors: bool = False


ROOM: Final = ("accumulators", "statistics")
OUTPUTS: Final = ("out", "log_sum_exp")
PAGED: Final = {
    **{name: name for name in ("q", "page_table", "seq_lens")},
    "per_head": ("sinks", "alibi_slopes"),
    "outputs": OUTPUTS,
}
DECODE: Final = PAGED | {"partials": (*ROOM, None), "cache": ("k_cache", "v_cache", "k_scale", "v_scale")}
MERGE: Final = {"partials": (*ROOM, None), "seq_lens": "seq_lens", "sinks": "sinks", "outputs": OUTPUTS}
LATENTS: Final = {
    "latents": "k_cache",
    "beside": "k_cache",
    "sinks": "sinks",
    "partials": (*ROOM, None),
    **{name: PAGED[name] for name in ("q", "page_table", "seq_lens", "outputs")},
}
PREFILL: Final = PAGED | {"cu_seqlens_q": "cu_seqlens_q", "cache": DECODE["cache"]}
DENSE: Final = {name: name for name in ("q", "k", "v", *OUTPUTS)}
MASKED: Final = {**{name: name for name in "qkv"}, "operands": operands.NAMES[3:], "outputs": OUTPUTS}
PIECES: Final = DENSE | {f"{name}_rest": f"rest of {name}" for name in "qkv"}
SHARES: Final = DENSE | {"partials": (*ROOM, None)}
COMBINE: Final = {"partials": (*ROOM, None)} | {name: name for name in OUTPUTS}
VARLEN: Final = {name: name for name in varlen.NAMES[:6]} | {"padding": varlen.NAMES[6:], "outputs": OUTPUTS}
TILES: Final = {name: name for name in ("table", *varlen.NAMES[3:5], "seqused_q", "seqused_k")} | {"numbers": None}
NUMBERS: Final = {"numbers": "table", "q_lens": "seqused_q", "kv_lens": "seqused_k", "kv_starts": "kv_starts"}
PADDED_TILES: Final = {**dict.fromkeys(TILES), "table": "table", "numbers": "table"}
PACKED: Final = {name: name for name in ("q", "k", "v", *OUTPUTS, "sinks", "table")}
GATHER: Final = {
    **{name: PAGED[name] for name in ("page_table", "seq_lens")},
    "cache": ("k_cache", "v_cache", "k_scale", "v_scale"),
    **{name: f"room for {name}" for name in ("keys", "values", "key_offsets")},
    "cu_seqlens_q": "cu_seqlens_q",
}
GATHERED_TILES: Final = {
    **dict.fromkeys(TILES),
    "table": "table",
    "cu_seqlens_q": "cu_seqlens_q",
    "cu_seqlens_k": "room for key_offsets",
    "seqused_k": "seq_lens",
}
GATHERED: Final = {
    **PACKED,
    "k": "room for keys",
    "v": "room for values",
    "padded": None,
    "scales": ("k_scale", "v_scale", *STRIDES),
}
CASES: Final = {
    "flash_attention": Repeated("flash_attention.repeat", (flash_attention_forward,), (DENSE,), dense.NAMES),
    "flash_attention in Gluon": Repeated(
        "flash_attention.repeat", (gluon.flash_attention_forward,), (DENSE,), dense.NAMES
    ),
    "flash_attention with operands": Repeated(
        "flash_attention.operand_repeat", (flash_attention_masked_forward,), (MASKED,), operands.NAMES
    ),
    "flash_attention over split values": Repeated(
        "flash_attention.operand_repeat", (flash_attention_columns_forward,), (MASKED,), operands.NAMES
    ),
    "flash_attention over split keys": Repeated(
        "flash_attention.triton_split_keys.repeat", (attend_shares, combine_shares), (SHARES, COMBINE), dense.NAMES
    ),
    "flash_attention over split widths": Repeated(
        "flash_attention.triton_split_width.repeat", (flash_attention_pieces_forward,), (PIECES,), dense.NAMES
    ),
    "flash_attention_varlen": Repeated(
        "flash_attention_varlen.triton.repeat", (flash_attention_varlen_forward,), (VARLEN,), varlen.NAMES
    ),
    "flash_attention_varlen in Gluon": Repeated(
        "flash_attention_varlen.gluon_hopper.repeat",
        (write_tiles, varlen_attention_forward),
        (TILES, PACKED | {"padded": None, "scales": FIXED}),
        varlen.NAMES,
        needs_descriptors=True,
    ),
    "flash_attention_varlen of a padded batch in Gluon": Repeated(
        "flash_attention_varlen.gluon_hopper.repeat",
        (number_rows, write_tiles, varlen_attention_forward),
        (NUMBERS, PADDED_TILES, PACKED | {"padded": ("out", "table"), "scales": FIXED}),
        varlen.NAMES,
        needs_descriptors=True,
    ),
    "paged_decode split": Repeated(
        "paged_decode.triton.repeat", (paged_decode_split, combine_partials), (DECODE, MERGE), decode.NAMES
    ),
    "paged_decode flat": Repeated(
        "paged_decode.triton.repeat", (paged_decode_flat, combine_partials), (DECODE, MERGE), decode.NAMES
    ),
    "paged_decode of latents": Repeated(
        "paged_decode.triton.repeat", (latent_decode_split, combine_partials), (DECODE, MERGE), decode.NAMES
    ),
    "paged_decode of latents in Gluon": Repeated(
        "paged_decode.gluon_hopper_latent.repeat",
        (latent_decode_hopper, combine_partials),
        (LATENTS, MERGE),
        decode.NAMES,
    ),
    "paged_prefill in Gluon": Repeated(
        "paged_prefill.gluon_hopper.repeat",
        (gather_pages, write_tiles, varlen_attention_forward),
        (GATHER, GATHERED_TILES, GATHERED),
        prefill.NAMES,
        needs_descriptors=True,
    ),
    "paged_prefill": Repeated("paged_prefill.triton.repeat", (paged_prefill_forward,), (PREFILL,), prefill.NAMES),
}


def arguments_of(case: Repeated, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Repeat launches whose constants are their names; return what each is given, addresses by the tensors' names."""
    repeat = importlib.import_module(f"autotune.kernels.{case.repeat}")
    given: list[tuple[Any, ...]] = []

    def relaunch_of(launch: PastLaunch, varying: int) -> Callable[[int, tuple[Any, ...]], None]:
        return lambda stream, arguments: given.append((*arguments, *launch.arguments[varying:]))

    monkeypatch.setattr(relaunch, "relaunch_of", relaunch_of)  # which ``relaunches_of`` calls
    monkeypatch.setattr(repeat, "relaunch_of", relaunch_of, raising=False)
    if case.needs_descriptors:
        plain: Any = SimpleNamespace(of=lambda _, addresses: addresses)  # in place of what is encoded of them
        monkeypatch.setattr(repeat, "described_by", lambda *_: Described(plain, 4))
    monkeypatch.setattr(repeat, "stream_reader", lambda: lambda device: 0)
    monkeypatch.setattr(Workspace, "allocate", lambda self, q: (None, ROOM))
    names_of_room = [f"room for {name}" for name in ("keys", "values", "key_offsets")]
    tensors = {name: torch.empty(2 * BEGIN) for name in (*case.names, *OUTPUTS, "table", *names_of_room)}
    monkeypatch.setattr(repeat, "new_table", lambda like, sizes: tensors["table"], raising=False)
    room = iter(names_of_room)
    monkeypatch.setattr(repeat, "new_room", lambda *_: tensors[next(room)], raising=False)
    results: Any = SimpleNamespace(take=lambda *_: tuple(tensors[name] for name in OUTPUTS))
    launches = [PastLaunch(None, (1,), tuple(map(first_argument, kernel.arg_names))) for kernel in case.kernels]
    made = repeat.repeat_of(launches, results, torch.device("cuda", 0))
    inputs = [tensors[name] for name in case.names]
    made(inputs, [each.data_ptr() for each in inputs], None)
    names = {tensor.data_ptr(): name for name, tensor in tensors.items()}
    names |= {tensors[name].data_ptr() + 4 * BEGIN: f"rest of {name}" for name in case.names}
    return [named(arguments, names.get) for arguments in given]


def first_argument(name: str) -> Any:
    if name in ("q", "k", "v"):
        return WHOLE
    if name in ("q_rest", "k_rest", "v_rest"):
        return WHOLE[:, BEGIN:]
    known = {"partials": PARTIALS, "table": PARTIALS.statistics, "numbers": PARTIALS.statistics, "padded": PADDED}
    known |= {"scales": SCALES, **dict.fromkeys(("keys", "values", "key_offsets"), WHOLE)}
    return known.get(name, f"constant {name}")


def named(value: Any, name_of: Callable[[Any], str | None]) -> Any:
    if isinstance(value, tuple):
        return tuple(named(each, name_of) for each in value)
    return name_of(value) or value


@pytest.mark.parametrize("case", CASES)
def test_every_argument_stands_where_the_kernel_has_it(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = arguments_of(CASES[case], monkeypatch)
    for kernel, arguments, varying in zip(CASES[case].kernels, found, CASES[case].varying, strict=True):
        expected = {name: varying.get(name, f"constant {name}") for name in kernel.arg_names}
        assert varying.keys() <= expected.keys()
        assert dict(zip(kernel.arg_names, arguments, strict=True)) == expected
