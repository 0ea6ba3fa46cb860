"""A measured roofline as ``autotune analyze roofline --ncu --json`` printed it on one NVIDIA H200 on 2026-11-21."""

from typing import Any, Final

MIB: Final = 2**20
# kernel, S, sequences; bytes read and written by the model, and by Nsight Compute; percents of the peak throughputs.
COUNTS: Final = (
    ("attention_scores", 1024, 30, (251658240, 956301312), (251671808, 980298496), (41.16, 45.74)),
    ("softmax_rows", 1024, 30, (1006632960, 943718400), (1006682112, 979789568), (75.27, 85.12)),
    ("weighted_sum", 1024, 30, (1132462080, 119537664), (1133044992, 120243712), (58.62, 31.35)),
    ("naive", 1024, 30, (2390753280, 2019557376), (2391398912, 2080331776), (61.21, 59.20)),
    ("flash_attention_forward", 1024, 30, (377487360, 110100480), (377541888, 117689856), (19.03, 51.51)),
    ("attention_scores", 4096, 8, (268435456, 4235753592), (268451840, 4268225536), (36.51, 46.08)),
    ("softmax_rows", 4096, 8, (4294967296, 4232052736), (4295135744, 4268240128), (83.2, 80.0)),
    ("weighted_sum", 4096, 8, (4429185024, 132367300), (4434915072, 131844864), (49.71, 30.06)),
    ("naive", 4096, 8, (8992587776, 8600173628), (8998502656, 8668310528), (62.55, 58.38)),
    ("flash_attention_forward", 4096, 8, (402653184, 118489088), (402700032, 125941760), (5.49, 60.3)),
)
# kernel, S, sequences; FLOPs, bytes by formula, microseconds.
POINTS: Final = (
    ("naive", 1024, 16, 137438953472, 2415919104, 867.7),
    ("attention_scores", 1024, 16, 68987912192, 671088640, 330.2),
    ("softmax_rows", 1024, 16, 1342177280, 1073741824, 327.3),
    ("weighted_sum", 1024, 16, 68719476736, 671088640, 245.5),
    ("sdpa cudnn", 1024, 16, 137438953472, 268435456, 227.4),
    ("autotune", 1024, 16, 137438953472, 268435456, 291.1),
    ("naive", 4096, 4, 549755813888, 8858370048, 3613.9),
    ("sdpa cudnn", 4096, 4, 549755813888, 268435456, 833.9),
    ("autotune", 4096, 4, 549755813888, 268435456, 1077.7),
)


def shape(seq: int, batch: int) -> dict[str, Any]:
    fields = {"batch": batch, "heads": 16, "kv_heads": 16, "seq_q": seq, "seq_kv": seq, "head_dim": 128}
    return {**fields, "head_dim_v": 128, "dtype": "bfloat16", "causal": False, "window": None, "softcap": False}


def saved_roofline() -> dict[str, Any]:
    """A copy of its own, which a test may change."""
    return {
        "works": [],
        "measured_at": "2026-11-21T22:26:00+00:00",
        "toolchain": {"tool": "0.1.0", "triton": "3.6.0", "ptxas": "", "torch": "2.11.0", "cuda": "13.0", "driver": ""},
        "ceilings": {
            "machine": {"kind": "cuda", "name": "NVIDIA H200", "cache_bytes": 60 * MIB, "units": 132},
            "dtype": "bfloat16",
            "memory": [{"name": "read (sum)", "value": 4322.6}, {"name": "copy", "value": 2767.9}],
            "compute": [{"name": "product", "value": 772.7}],
        },
        "points": [
            {
                "name": name,
                "shape": shape(seq, batch),
                "flops": flops,
                "bytes": moved,
                "timing": {"median_us": us, "low_us": us - 0.5, "high_us": us + 0.5, "samples": 15},
                "reason": "",
                "bound": "what follows from the numbers is not read",
            }
            for name, seq, batch, flops, moved, us in POINTS
        ],
        "ncu": [
            {
                "kernel": kernel,
                "shape": shape(seq, batch),
                "predicted": {"kernel": kernel, "read": predicted[0], "write": predicted[1], "most": sum(predicted)},
                "counted": {
                    "kernel": kernel,
                    "read": counted[0],
                    "write": counted[1],
                    "memory_percent": percents[0],
                    "compute_percent": percents[1],
                },
            }
            for kernel, seq, batch, predicted, counted, percents in COUNTS
        ],
        "failures": [],
    }
