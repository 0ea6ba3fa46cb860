"""Attempts at tasks are found again, and the latest owns its task."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from autotune.errors import TableError
from autotune.grid import Attempt, AttemptEnd, GridPlace
from autotune.grid.attempt import decode_ending, encode

BEGUN = datetime(2026, 11, 25, 12, tzinfo=UTC)


def attempt(number: int, token: str) -> Attempt:
    return Attempt(
        task="ab12",
        number=number,
        token=token,
        host="node",
        device="NVIDIA H200",
        power_cap_watts=700.0,
        toolchain="triton 3.6.0",
        started=BEGUN,
    )


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_records_are_found_again(tmp_path: Path, scheme: str) -> None:
    place = GridPlace(f"{scheme}{tmp_path / 'place'}")
    assert (place.records(), place.owner("ab12")) == (([], []), None)
    first, second = attempt(1, "f0"), attempt(2, "0f")
    ending = AttemptEnd(task="ab12", token="f0", state="done", seconds=1.5, trials={"ok": 3})
    place.begin(first)
    place.begin(second)
    place.end(ending)
    assert place.owner("ab12") == (2, "0f") == second.order
    assert place.records() == ([first, second], [ending])


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    place = GridPlace(tmp_path)
    place.folder.write("tasks/ab12/1-f0.begun.json", b"{")
    with pytest.raises(TableError, match=r"1-f0\.begun\.json: is not an attempt"):
        place.records()


def test_credentials_leave_a_record_whole() -> None:
    message = 'cannot open "s3://bucket/p?session_token=T1234": no such bucket'
    end = AttemptEnd(task="ab12", token="f0", state="failed", seconds=1.0, message=message)
    found = decode_ending(encode(end), "here")
    assert (found.state, "T1234" in found.message, found.message[-14:]) == ("failed", False, "no such bucket")
