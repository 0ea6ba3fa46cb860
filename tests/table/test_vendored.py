"""The exported module loads without anything of ours, and answers as the table does."""

import dataclasses
import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autotune.shape import AttentionShape
from autotune.table import export, shipped_winners
from autotune.table.vendored import vendored_source
from tests import sample
from tests.table import sample as table_sample


def load(source: str) -> ModuleType:
    module = ModuleType("vendored")
    exec(compile(source, "vendored.py", "exec"), module.__dict__)
    return module


@pytest.fixture(scope="module")
def shipped() -> Any:
    """The module of the winners that ship for the H200."""
    rows = shipped_winners("flash_attention", implementation="triton", slug="nvidia_h200")
    return rows, load(export(rows, "python"))


def test_it_needs_python_alone_and_warns_of_nothing(tmp_path: Path) -> None:
    rows = [sample.trial(sample.shape(seq)) for seq in (512, 1024)]
    (tmp_path / "winners.py").write_text(export(rows, "python"))
    code = f"import sys, json, winners; print(json.dumps(winners.config_for(**{sample.shape().as_dict()!r})))"
    command = [sys.executable, "-W", "error", "-S", "-c", code]  # -S: no installed package can be imported
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": ""})
    assert ran.stderr == ""
    assert json.loads(ran.stdout) == {name: value for name, value in sample.FAST.items() if value is not None}


def test_every_row_is_served_for_its_own_shape(shipped: Any) -> None:
    rows, module = shipped
    assert len(rows) > 20
    for row in rows:
        own = {name: value for name, value in row.config.items() if value is not None}
        assert module.config_for(**row.shape.as_dict()) == own
        assert module.config_for(device="NVIDIA H200", **row.shape.as_dict()) == own


def test_the_nearest_shape_is_that_of_the_table(shipped: Any) -> None:
    """As ``Shape.distance`` has it, where group and KV heads stay, whose product the module counts as heads."""
    rows, module = shipped
    for row, factor in itertools.product(rows[::3], (0.75, 1.3)):
        asked = dataclasses.replace(row.shape, seq_q=int(row.shape.seq_q * factor), seq_kv=row.shape.seq_kv)
        alike = [
            each
            for each in rows
            if (each.shape.heads, each.shape.kv_heads) == (asked.heads, asked.kv_heads)
            and asked.distance(each.shape) <= 1.0
        ]
        nearest = min(asked.distance(each.shape) for each in alike)
        expected = [dict(each.config) for each in alike if asked.distance(each.shape) <= nearest + 1e-9]
        found = module.config_for(**asked.as_dict())
        assert any(found == {k: v for k, v in each.items() if v is not None} for each in expected)


def test_what_is_not_like_any_gets_none() -> None:
    module = load(export([sample.trial()], "python"))
    ask = sample.shape().as_dict()
    for change in ({"causal": False}, {"dtype": "float16"}, {"window": 64}, {"seq_q": 2049}, {"head_dim": 64}):
        assert module.config_for(**{**ask, **change}) is None
    assert module.config_for(max_distance=1.5, **{**ask, "seq_q": 2049}) is not None


def test_fields_that_joined_later_may_be_left_out() -> None:
    module = load(export([sample.trial()], "python"))
    ask = sample.shape().as_dict()
    older = {name: value for name, value in ask.items() if name not in ("attn_mask", "sinks", "kv_ends")}
    assert module.config_for(**older) == module.config_for(**ask) is not None
    assert module.config_for(**older, sinks=True) is None


def test_a_window_that_hides_nothing_is_as_none() -> None:
    module = load(export([sample.trial()], "python"))
    ask = sample.shape().as_dict()
    for window in (sample.shape().seq_kv + more for more in (-1, 0, 1)):
        shape = dataclasses.replace(sample.shape(), window=window)
        assert (module.config_for(**{**ask, "window": window}) is None) == (shape.window is not None)


def test_a_wrong_call_says_what_is_expected() -> None:
    other = dataclasses.replace(sample.trial().device, name="NVIDIA B200", arch="sm_100")
    module = load(export([sample.trial(), sample.trial(device=other)], "python"))
    with pytest.raises(TypeError, match=r"config_for takes batch, heads, .*; got batch"):
        module.config_for(batch=1)
    with pytest.raises(TypeError, match="device is needed; expected one of NVIDIA B200, NVIDIA H200"):
        module.config_for(**sample.shape().as_dict())


def test_of_several_power_caps_the_highest_is_exported() -> None:
    slow = table_sample.trial(device=table_sample.CAPPED_H200, config=table_sample.config(16))
    fast = table_sample.trial(config=table_sample.config(64))
    for rows in ([slow, fast], [fast, slow]):
        (row,) = load(export(rows, "python")).ROWS
        assert row["config"]["BLOCK"] == 64


def test_text_of_a_table_is_no_code() -> None:
    device = dataclasses.replace(sample.trial().device, name="GPU '''\n\"\"\"\nraise SystemExit")
    assert load(export([sample.trial(device=device)], "python")).ROWS[0]["device"] == device.name


@pytest.mark.parametrize("name", ['x"""\nraise SystemExit\n"""', "x\\", "{rows}", "x'\nraise SystemExit"])
def test_a_name_is_no_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("table_sample", name)
    monkeypatch.setattr("autotune.table.vendored.require_one", lambda trials: given)
    module = load(vendored_source([table_sample.trial()]))
    assert "/".join(given) == module.OWNER


def test_the_answer_is_the_callers_own() -> None:
    module = load(export([sample.trial()], "python"))
    ask = AttentionShape(**sample.shape().as_dict()).as_dict()  # type: ignore[arg-type]
    module.config_for(**ask)["BLOCK_Q"] = 0
    assert module.config_for(**ask)["BLOCK_Q"] == sample.FAST["BLOCK_Q"]
