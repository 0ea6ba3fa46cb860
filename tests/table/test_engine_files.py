"""Files for engines load as vLLM's and SGLang's fused mixture-of-experts kernels load theirs."""

import dataclasses
import json
import re

import pytest

from autotune.errors import UsageError
from autotune.table.engine_files import engine_files
from autotune.trial import Trial
from tests import sample


def load(text: str) -> dict[int, dict[str, object]]:
    """Load a file as those engines do: every key is a size, every value the arguments of a launch."""
    return {int(key): value for key, value in json.loads(text).items()}


def serve(found: dict[int, dict[str, object]], size: int) -> dict[str, object]:
    """Serve the nearest size, as they do."""
    return found[min(found, key=lambda known: abs(known - size))]


def rows() -> list[Trial]:
    other = sample.config(BLOCK_K=64)
    lengths = (512, 1024, 4096)
    return [sample.trial(sample.shape(seq, batch=4), sample.FAST if seq < 4096 else other) for seq in lengths]


def test_one_file_maps_the_size_that_varies() -> None:
    ((name, text),) = engine_files(rows()).items()
    assert name == (
        "batch=4,heads=16,kv_heads=16,head_dim=128,head_dim_v=128,causal=True,device_name=NVIDIA_H200,"
        "dtype=bfloat16.json"
    )
    found = load(text)
    assert list(found) == [512, 1024, 4096]
    assert serve(found, 3000)["BLOCK_K"] == 64
    assert serve(found, 700) == {name: value for name, value in sample.FAST.items() if value is not None}


def test_one_row_that_does_not_follow_has_a_file_of_its_own() -> None:
    shorter = dataclasses.replace(sample.shape(512, batch=4), seq_kv=2048)
    files = engine_files([*rows(), sample.trial(shorter)])
    sizes = {name: list(load(text)) for name, text in files.items()}
    assert sizes == {
        "batch=4,heads=16,kv_heads=16,head_dim=128,head_dim_v=128,causal=True,device_name=NVIDIA_H200,"
        "dtype=bfloat16.json": [512, 1024, 4096],
        "batch=4,heads=16,kv_heads=16,seq_kv=2048,head_dim=128,head_dim_v=128,causal=True,device_name=NVIDIA_H200,"
        "dtype=bfloat16.json": [512],
    }


def test_a_flag_does_not_follow_a_size_of_one() -> None:
    shapes = [sample.shape(512, batch=1), sample.shape(1024, batch=1), sample.shape(512, batch=1, causal=False)]
    files = engine_files([sample.trial(each) for each in shapes])
    assert sum(len(load(text)) for text in files.values()) == 3
    assert sum("causal=True" in name for name in files) == 1
    assert sum(len(load(text)) for text in engine_files([sample.trial(each) for each in shapes], "batch").values()) == 3


def test_another_key_may_be_named() -> None:
    files = engine_files(rows(), "batch")
    assert len(files) == 3
    assert all(list(load(text)) == [4] for text in files.values())
    with pytest.raises(UsageError, match="key='dtype' is no size of a AttentionShape; expected batch, heads"):
        engine_files(rows(), "dtype")


def test_a_device_and_a_problem_have_a_file_each() -> None:
    other = dataclasses.replace(rows()[0].device, name="NVIDIA B200/../x", arch="sm_100")
    found = engine_files([*rows(), sample.trial(sample.shape(512, batch=4), device=other)])
    assert len(found) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9_.,=-]+\.json", name) for name in found)
    assert sum("device_name=NVIDIA_H200" in name for name in found) == 1
    assert not any("/" in name for name in found)
