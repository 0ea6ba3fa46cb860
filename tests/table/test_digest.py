"""One digest of what is served: of the rows alone, in every process and however they are spread over files."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from autotune.errors import TableError
from autotune.table import Store, shipped_compilations, shipped_portfolios, shipped_winners
from autotune.table.digest import tables_digest
from autotune.trial import Trial
from tests.table import sample

ROWS = [sample.trial(number, shape=replace(sample.SHAPE, batch=number), race_id=f"r{number}") for number in range(1, 7)]
ANSWERS = """
import json, random, sys
from autotune import AttentionShape, get_kernel, tables_digest
shapes = [AttentionShape(**each) for each in json.loads(sys.argv[1])]
random.Random(int(sys.argv[2])).shuffle(shapes)
found = {str(shape): str(get_kernel(shape, device="NVIDIA H200", operation="flash_attention").candidate)
         for shape in shapes}
print(json.dumps([sorted(found.items()), str(tables_digest())]))
"""


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ships, and the site has nothing."""
    reads: tuple[Callable[..., Any], ...] = (shipped_winners, shipped_portfolios, shipped_compilations)
    for read in reads:
        monkeypatch.setitem(cast(dict[str, Any], read.__kwdefaults__), "results", tmp_path / "results")


def digest(root: Path, *batches: list[Trial]) -> str:
    for batch in batches:
        Store(root).append(batch)
    return tables_digest(root).digest


def test_files_make_no_difference(tmp_path: Path) -> None:
    one = digest(tmp_path / "a", ROWS)
    assert digest(tmp_path / "b", *([row] for row in reversed(ROWS))) == one
    Store(tmp_path / "b").compact(sample.NAME, ROWS[0].device)
    assert digest(tmp_path / "b") == one
    loser = replace(
        ROWS[0],
        outcome=replace(
            ROWS[0].outcome, timing=sample.timing(900.0), candidate=replace(ROWS[0].candidate, config=sample.config(64))
        ),
        number=40,
    )
    assert digest(tmp_path / "b", [loser]) == one  # nothing of it is served


def test_whose_tables_they_are_makes_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = digest(tmp_path / "a", ROWS)
    monkeypatch.setenv("AUTOTUNE_SITE", str(tmp_path / "a"))
    assert digest(tmp_path / "nobody") == one


def test_another_winner_makes_one_and_its_part_is_named(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    assert digest(first, ROWS) != digest(second, ROWS[1:])
    name = f"{sample.NAME}/triton/nvidia_h200/winners"
    assert tables_digest(first).differences(tables_digest(second).parts) == [name]
    assert tables_digest(first).differences(tables_digest(first).parts) == []


def test_a_damaged_table_has_none(tmp_path: Path) -> None:
    (part,) = Store(tmp_path).append(ROWS)
    part.write_bytes(b"PAR1")
    with pytest.raises(TableError, match="damaged"):
        tables_digest(tmp_path)


@pytest.mark.slow
def test_eight_processes_that_ask_in_any_order_agree(tmp_path: Path) -> None:
    """Ranks of one job must launch the same config for the same shape."""
    from tests import sample as attention

    lengths = [2**power * step for power in range(7, 12) for step in (2, 3)]
    chosen = [attention.FAST, attention.config(BLOCK_K=64), attention.config(BLOCK_K=32)]
    rows = [
        attention.trial(attention.shape(seq), chosen[seq % 3], race_id=f"r{seq}", number=number)
        for number, seq in enumerate(lengths)
    ]
    for row in random.Random(0).sample(rows, len(rows)):
        Store(tmp_path).append([row])
    shapes = json.dumps([attention.shape(seq + more).as_dict() for seq in lengths for more in (0, 64)])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ANSWERS, shapes, str(rank)],
            env={**os.environ, "AUTOTUNE_HOME": str(tmp_path), "PYTHONHASHSEED": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(8)
    ]
    found = {rank.communicate(timeout=240)[0] for rank in ranks}
    assert [rank.returncode for rank in ranks] == [0] * 8
    assert len(found) == 1
