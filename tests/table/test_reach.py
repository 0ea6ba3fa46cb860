"""A place is asked once, within seconds, before work depends on it."""

import socket
from pathlib import Path

import pytest

from autotune.errors import TableError
from autotune.table import reach
from autotune.table.reach import ASKED, require_reachable
from autotune.table.remote import open_folder


def test_a_folder_is_asked_here(tmp_path: Path) -> None:
    require_reachable(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    require_reachable(tmp_path / "new", writable=True)
    assert (tmp_path / "new" / ASKED).exists()
    assert open_folder(tmp_path / "new").list() == []
    (tmp_path / "file").touch()
    with pytest.raises(TableError, match=r"file.*cannot be written: File exists"):
        require_reachable(tmp_path / "file" / "place", writable=True)


def test_a_uri_is_asked_by_a_process_and_refused_without_its_credentials() -> None:
    require_reachable("mock:///bucket/place", writable=True)
    with pytest.raises(TableError) as caught:
        require_reachable("nothing://KEY:SECRET-0123@bucket/place?token=SECRET-0123", writable=True)
    assert str(caught.value).startswith("nothing://bucket/place: cannot be opened")
    assert "SECRET" not in str(caught.value)


def test_a_store_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "ANSWER_SECONDS", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"s3://KEY:SECRET-0123@bucket/x?scheme=http&endpoint_override=127.0.0.1%3A{silent.getsockname()[1]}"
        with pytest.raises(TableError, match=r"^s3://bucket/x: does not answer within 3 s; check the address"):
            require_reachable(place)
