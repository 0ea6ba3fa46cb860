"""Folders of ``pyarrow.fs``: errors name the place and the file and chain nothing, and what may pass is tried again."""

import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import fs

from autotune.errors import LastingTableError, MissingFileError, TableError
from autotune.table import files, remote
from autotune.table.remote import Folder, RemoteFolder, open_folder

SECRET = "hU9x4Zq77"


class Flaky:
    """A file system that fails some times before it answers."""

    def __init__(self, files: Any, errors: list[Exception]) -> None:
        self.files, self.errors, self.type_name = files, errors, "s3"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self.errors:
                raise self.errors.pop(0)
            return getattr(self.files, name)(*arguments, **named)

        return call


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, none of which lasts."""
    made: list[float] = []
    monkeypatch.setattr("autotune.table.remote.time.sleep", made.append)
    return made


@pytest.fixture(params=["local", "remote"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return open_folder(tmp_path if request.param == "local" else "mock:///bucket/tables")


def test_a_file_is_removed_and_one_that_is_not_there_is_passed_over(folder: Folder) -> None:
    folder.write("tables/a", b"1")
    folder.write("tables/b", b"2")
    folder.remove("tables/a")
    folder.remove("tables/a")
    assert folder.list("tables") == ["tables/b"]
    with pytest.raises(TableError):
        folder.remove("../a")


def test_files_are_found_again_but_hidden_ones(folder: Folder) -> None:
    assert folder.list() == folder.list("a") == []
    for name in ("a/b.txt", "c.txt"):
        folder.write(name, name.encode())
    folder.write("c.txt", b"new")
    for name in (".unconfirmed/d.txt", ".asked/probe"):
        folder.write(name, b"")
    assert (folder.list(), folder.list("a")) == (["a/b.txt", "c.txt"], ["a/b.txt"])
    assert (folder.read("a/b.txt"), folder.read("c.txt")) == (b"a/b.txt", b"new")


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "a//b", "", ".", "a\\b", "a\nb"])
def test_names_that_lead_out_are_refused(folder: Folder, name: str) -> None:
    for act in (folder.read, lambda given: folder.write(given, b"")):
        with pytest.raises(TableError, match="is no name of a file below it"):
            act(name)
    if name:
        with pytest.raises(TableError, match="is no name of a file below it"):
            folder.list(name)


@pytest.mark.parametrize(
    "place",
    ["s3:/bucket/tables", "file:/data", "file://data/grid", "s3//bucket/tables", "s3/KEY:SECRET@bucket", "/a/gs/K:S@b"],
)
def test_what_is_hardly_a_path_or_a_uri_is_refused(place: str) -> None:
    with pytest.raises(TableError, match=r"two slashes after the colon|names another host|with a colon") as raised:
        open_folder(place)
    assert "SECRET" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(folder: Folder, pauses: list[float]) -> None:
    with pytest.raises(TableError, match=r"a/b\.txt: cannot be read"):
        folder.read("a/b.txt")
    assert pauses == []


def test_a_large_file_is_refused(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a.txt", b"123456")
    for module in (files, remote):
        monkeypatch.setattr(module, "MAX_FILE_BYTES", 5)
    with pytest.raises(TableError, match=r"a\.txt: cannot be read: larger than 5 bytes"):
        folder.read("a.txt")


def flaky(errors: list[Exception]) -> RemoteFolder:
    folder = RemoteFolder(f"mock://KEY:{SECRET}@host/bucket")
    folder.write("a.txt", b"data")
    folder._files = Flaky(folder._files, errors)
    return folder


def test_what_may_pass_is_tried_again(pauses: list[float]) -> None:
    busy: list[Exception] = [OSError("AWS Error SLOW_DOWN"), OSError("curlCode: 28, Timeout was reached")]
    folder = flaky(busy)
    assert folder.read("a.txt") == b"data"
    assert len(pauses) == 2
    busy += [OSError("AWS Error SLOW_DOWN")] * 9
    with pytest.raises(TableError, match=r"mock://host/bucket/a\.txt: cannot be written: the store is busy"):
        folder.write("a.txt", b"")
    assert len(pauses) == 4


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("When getting information for key 'x' in bucket 'b': AWS Error ACCESS_DENIED: Access\nDenied", "refuses it"),
        ("AWS Error INVALID_ACCESS_KEY_ID during ListObjectsV2 operation", "does not know these credentials"),
        ("Path does not exist 'bucket/x'. Detail: [errno 2] No such file", "no such bucket, folder or file"),
        (
            "AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7",
            "cannot be reached; check the address",
        ),
        (
            "When resolving region for bucket 'nosuchbucket-x': AWS Error NETWORK_CONNECTION during HeadBucket "
            "operation: curlCode: 6, Could not resolve hostname: nosuchbucket-x.amazonaws.com",
            "cannot be reached",
        ),
        ("When listing objects in bucket 'forbidden': AWS Error SLOW_DOWN", "is busy"),
        ("Status(UNAVAILABLE: Retry policy exhausted: CURL error [7]=Could not connect to server", "cannot be reached"),
        ("Status(UNAVAILABLE: Could not create a OAuth2 access token: CURL error [6]", "no access token can be had"),
        ("connect: Network is unreachable", "cannot be reached"),
        ("something else", "OSError: something else"),
    ],
)
def test_errors_of_clients_are_said_in_words_of_ours(said: str, expected: str, pauses: list[float]) -> None:
    with pytest.raises(TableError, match=rf"^mock://host/bucket/a\.txt: cannot be read: [^\n]*{expected}[^\n]*$"):
        flaky([OSError(said)] * 3).read("a.txt")


@pytest.mark.parametrize(
    ("uri", "opened"),
    [
        ("gs://bucket/x", "gs://bucket/x?retry_limit_seconds=6"),
        ("gs://bucket/x?scheme=http", "gs://bucket/x?scheme=http&retry_limit_seconds=6"),
        ("gs://bucket/x?retry_limit_seconds=90", "gs://bucket/x?retry_limit_seconds=90"),
        ("s3://bucket/x", "s3://bucket/x?allow_delayed_open=true"),
        ("hdfs://host/x", "hdfs://host/x"),
    ],
)
def test_a_client_tries_again_for_seconds_or_as_long_as_the_uri_says(
    uri: str, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def from_uri(given: str) -> tuple[None, str]:
        asked.append(given)
        return None, "bucket/x"

    monkeypatch.setattr(fs, "FileSystem", SimpleNamespace(from_uri=from_uri))
    open_folder(uri)
    assert asked == [opened]


@pytest.mark.parametrize("said", ["in bucket 'permission': AWS Error SLOW_DOWN", "curlCode: 6, expired.amazonaws.com"])
def test_a_name_does_not_say_that_an_error_lasts(said: str, pauses: list[float]) -> None:
    assert flaky([OSError(said)]).read("a.txt") == b"data"
    assert len(pauses) == 1


@pytest.mark.parametrize("error", [OSError("AWS Error ACCESS_DENIED"), ValueError("bad"), PermissionError(13, "no")])
def test_what_does_not_pass_is_raised_at_once(error: Exception, pauses: list[float]) -> None:
    with pytest.raises(TableError, match="cannot be listed"):
        flaky([error]).list()
    assert pauses == []


def test_an_upload_that_broke_off_is_made_again(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = flaky([])
    sizes = iter([3, 4])
    monkeypatch.setattr(folder._files, "get_file_info", lambda path: fs.FileInfo(path, size=next(sizes)), raising=False)
    folder.write("a.txt", b"1234")
    assert len(pauses) == 1


def test_no_secret_in_errors_nor_in_what_they_chain() -> None:
    uri = f"s3://KEY{SECRET}:{SECRET}@bucket/x?session_token={SECRET}&nonsense=1"
    said = [f"no {SECRET} in {uri}", f"Cannot parse URI: '{uri}'"]
    found = []
    for act in (
        lambda: open_folder(uri),
        lambda: open_folder(f"s3://K:{SECRET[:4]}/{SECRET}@b"),
        lambda: flaky([ValueError(said[0])]).read("a.txt"),
        lambda: flaky([PermissionError(said[1])]).list(),
    ):
        with pytest.raises(TableError) as caught:
            act()
        assert (caught.value.__cause__, caught.value.__context__) == (None, None)
        found.append("".join(traceback.format_exception(caught.value)))
    found.append(str(flaky([])))
    assert found[-1] == "mock://host/bucket"
    assert not [text for text in found if SECRET in text]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError("no such key"), MissingFileError),
        (OSError("AWS Error ACCESS_DENIED during PutObject operation"), LastingTableError),
        (OSError("AWS Error SLOW_DOWN during PutObject operation"), TableError),
    ],
)
def test_the_class_of_an_error_says_if_another_try_may_mend_it(
    error: Exception, expected: type[TableError], pauses: list[float]
) -> None:
    with pytest.raises(TableError) as raised:
        flaky([error] * 3).write("a", b"a")
    assert type(raised.value) is expected


@pytest.mark.parametrize("name", ["password=x/tables", "s3/tables", "a?b=c", "me@work"])
def test_a_folder_of_an_odd_name_is_a_folder(tmp_path: Path, name: str) -> None:
    (folder := open_folder(tmp_path / name)).write("a", b"1")
    assert (tmp_path / name / "a").read_bytes() == folder.read("a") == b"1"
