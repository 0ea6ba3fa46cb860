"""``tune`` and ``attention`` on GPUs: in a script, a thread that ends and two processes at once; on a second GPU."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune import attention, dispatch, get_kernel, paged_decode
from autotune.shape import AttentionShape
from autotune.table import Store
from autotune.trial import Stage
from autotune.tuning import Tuning, tune
from tests.kernels.numerics import dense_attention

ROOT = Path(__file__).parents[1]
SHAPE = AttentionShape(batch=2, heads=8, seq_q=768, head_dim=64, causal=True)
SCRIPT = """
import json
import autotune
shape = autotune.AttentionShape(batch=2, heads=8, seq_q=768, head_dim=64, causal=True)
result, = autotune.tune(shape, budget=20).results
print(json.dumps([result.failure, str(result.winner.candidate)]))
"""

ON_GPUS = """
import json, sys
import autotune
given = json.loads(sys.argv[1])
sizes = dict(batch=2, heads=8, head_dim=64, causal=True)
shapes = [autotune.AttentionShape(seq_q=length, **sizes) for length in given["lengths"]]
found = autotune.tune(shapes, gpus=given["gpus"], budget=30, trials=given["trials"])
uses = [[use.index, use.dropped, use.busy] for use in found.gpus]
print(json.dumps({"failures": [result.failure for result in found.results], "gpus": uses}))
"""

pytestmark = pytest.mark.gpu


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path))
    dispatch.reload()
    yield tmp_path
    dispatch.reload()


def tune_in_process(home: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "AUTOTUNE_HOME": str(home)}
    return subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True)


def test_two_scripts_tune_one_shape_on_one_home_at_once(home: Path) -> None:
    both = [tune_in_process(home) for _ in range(2)]
    for process in both:
        printed, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        failure, _winner = json.loads(printed.splitlines()[-1])
        assert failure == ""
    assert sum(trial.stage is Stage.RACE for trial in Store(home).trials("flash_attention")) >= 2
    assert get_kernel(SHAPE).provenance.rung == "exact"


@pytest.mark.filterwarnings("ignore")  # this process may hold a CUDA context, of which a warning tells
def test_a_thread_that_ends_leaves_a_winner_that_is_served(home: Path) -> None:
    found: list[Tuning] = []
    thread = threading.Thread(target=lambda: found.append(tune(SHAPE, budget=20)))
    thread.start()
    thread.join()
    (result,) = found[0].results
    assert result.winner is not None
    kernel = get_kernel(SHAPE)
    assert (kernel.provenance.rung, kernel.config) == ("exact", result.winner.config)


def test_a_process_that_holds_a_context_is_told_that_the_gpu_is_shared(home: Path) -> None:
    torch.ones(1, device="cuda")
    with pytest.warns(RuntimeWarning, match="GPU"):
        (result,) = tune(SHAPE, budget=20).results
    assert result.winner is not None


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it needs two GPUs")
def test_tensors_on_the_second_gpu_are_computed_there() -> None:
    assert torch.cuda.current_device() == 0
    generator = torch.Generator("cuda:1").manual_seed(0)
    options: dict[str, Any] = {"device": "cuda:1", "dtype": torch.bfloat16, "generator": generator}
    q, k, v = (torch.randn(2, 300, 8, 64, **options) for _ in range(3))
    out: Any = attention(q, k, v, causal=True)
    expected, _ = dense_attention(q, k, v, causal=True, window=None, softcap=None, scale=0.125)
    assert out.device == q.device
    assert (out.double() - expected).abs().max().item() < 0.02
    cache = torch.randn(40, 16, 8, 64, **options)
    table = torch.arange(40, device="cuda:1", dtype=torch.int32).view(2, 20)
    lengths = torch.tensor([300, 17], device="cuda:1", dtype=torch.int32)
    found: Any = paged_decode(q[:, :1], cache, cache, table, lengths)
    for row, length in enumerate((300, 17)):
        keys = cache[table[row].long()].flatten(0, 1)[None, :length]
        expected, _ = dense_attention(
            q[row, None, :1], keys, keys, causal=False, window=None, softcap=None, scale=0.125
        )
        assert (found[row, None].double() - expected).abs().max().item() < 0.02
    assert torch.cuda.current_device() == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it needs two GPUs")
def test_two_gpus_search_side_by_side_and_the_last_together(home: Path) -> None:
    found = tune_on(home, [0, 1], lengths=[768, 512, 640], trials=24)
    assert found["failures"] == ["", "", ""]
    assert [use[:2] for use in found["gpus"]] == [[0, ""], [1, ""]]
    assert all(busy > 0.0 for *_, busy in found["gpus"])
    rows = Store(home).trials("flash_attention")
    assert len({row.worker for row in rows if row.stage is Stage.SCREEN}) >= 2
    shapes = {row.shape for row in rows}
    assert len(shapes) == 3
    for shape in shapes:
        raced = [row for row in rows if row.stage is Stage.RACE and row.shape == shape]
        assert len({row.race_id for row in raced}) == len({(row.race_id, row.worker) for row in raced})
        assert get_kernel(shape).provenance.rung == "exact"
    assert not any(row.outcome.conditions.contended for row in rows)  # a worker computes on its own GPU alone


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it needs two GPUs")
def test_the_second_gpu_alone_searches(home: Path) -> None:
    found = tune_on(home, [1], lengths=[768], trials=24)
    assert found["failures"] == [""]
    assert [use[0] for use in found["gpus"]] == [1]


def tune_on(home: Path, gpus: list[int], *, lengths: list[int], trials: int) -> Any:
    """Tune in a process that holds no CUDA context, unlike this one after the tests above."""
    given = json.dumps({"gpus": gpus, "lengths": lengths, "trials": trials})
    done = subprocess.run(
        [sys.executable, "-c", ON_GPUS, given],
        cwd=ROOT,
        env={**os.environ, "AUTOTUNE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
