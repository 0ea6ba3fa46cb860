"""Remote folders: files by their names below a local folder or any URI that ``pyarrow.fs`` opens.

Each file is written once, whole or not at all: locally by a rename, in an object store by its own rule, after which its
size is looked at. Whatever goes wrong is a ``TableError`` that names the place and the file, without the credentials
that a URI may hold and without the client's exception, which may repeat them.
"""

import os
import random
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from autotune.errors import MESSAGE_LIMIT, LastingTableError, MissingFileError, TableError, printable
from autotune.redaction import HIDDEN, lacks_colon, redacted, secrets_in
from autotune.table.files import MAX_FILE_BYTES, read_bytes, write_bytes
from autotune.table.interruptible import interruptible

PAUSES: Final = (0.5, 2.0)  # seconds before each further try, of errors that may pass; clients try again, too
# By the schemes of URIs what is asked of pyarrow's client, but where the URI says it: that a small upload to S3 is one
# request, and how long Google's client tries again by itself, which is 15 minutes where nothing is asked.
_OPTIONS: Final = {
    "s3": ("allow_delayed_open", "true"),
    "gs": ("retry_limit_seconds", "6"),
    "gcs": ("retry_limit_seconds", "6"),
}
OBJECT_STORES: Final = frozenset({"s3", "gcs", "abfs"})  # whose folders are but parts of names
# What no other try mends, as stores word it; an answer without any of these may be a network's or a busy server's.
_LASTING: Final = (
    *("access_denied", "accessdenied", "invalid_access_key", "signature_does_not_match", "forbidden", "unauthorized"),
    *("no_such_bucket", "no_such_key", "expired", "invalid_client_token", "unrecognized_client", "missing_auth"),
    *("permission", "credential", "not found", "does not exist", "http status 400", "http status 403"),
)
# A network's errors, which may pass; looked for first, since what follows in them may be any host's name.
_UNREACHED: Final = (
    *("curlcode", "curl error", "could not resolve", "couldn't resolve", "network_connection", "connection refused"),
    *("network is unreachable", "no route to host", "timeout", "timed out"),
)
_QUOTED: Final = re.compile(r"(?<!\w)'[^']*'(?!\w)")  # names of buckets and files, which hold any words
_ABSENT: Final = "there is no such bucket, folder or file; check the name, and the region"
# What clients say of errors that a user can mend, in any of these words, and what is said of them here.
_MEANINGS: Final[dict[tuple[str, ...], str]] = {
    ("oauth2 access token",): (  # also where the store itself answers, and the host that gives tokens away does not
        "no access token can be had; check the network, and the credentials (GOOGLE_APPLICATION_CREDENTIALS, ...)"
    ),
    _UNREACHED: "the store cannot be reached; check the address, its port and region, and the network",
    ("no_such_bucket", "nosuchbucket", "no_such_key", "path does not exist"): _ABSENT,
    ("invalid_access_key", "signature_does_not_match", "expired", "invalid_client_token", "unrecognized_client"): (
        "the store does not know these credentials; renew them in the environment (AWS_ACCESS_KEY_ID, ...)"
    ),
    ("access_denied", "accessdenied", "forbidden", "unauthorized", "missing_auth", "http status 403", "permission"): (
        "the store refuses it; check the credentials in the environment, and what they may do there"
    ),
    ("slow_down", "service_unavailable", "throttl", "http status 503", "http status 429"): (
        "the store is busy and turns requests away; try again later, or with fewer hosts at once"
    ),
}
SCHEMES: Final = "s3://, gs://, abfs:// or hdfs://"
_ONE_SLASH: Final = re.compile(r"[a-z][a-z0-9+.-]+:/(?!/)", re.IGNORECASE)

T = TypeVar("T")


class Folder(Protocol):
    """A folder of files, named by relative paths with slashes; names that lead out of it are refused."""

    def __str__(self) -> str:
        """Return the place without credentials."""

    def list(self, prefix: str = "") -> list[str]:
        """Return the names of all files below a folder, sorted, but hidden ones; none where it is not there."""

    def read(self, name: str) -> bytes:
        """Return a file's bytes, ``MAX_FILE_BYTES`` at most."""

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file; readers see it old or new."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""


def open_folder(uri: str | Path) -> Folder:
    """Open a local path or a URI, such as ``s3://bucket/tables``; nothing is created.

    Raises:
        TableError: the URI cannot be opened; credentials in it are left out of the message.
    """
    text = str(uri)
    if _ONE_SLASH.match(text):  # as a path has it that was a URI: a folder of such a name would be made
        raise TableError(f"{redacted(text)!r} is neither a path nor a URI; expected two slashes after the colon")
    if "://" not in text and lacks_colon(text):
        raise TableError(f"{redacted(text)!r} is neither a path nor a URI; expected {SCHEMES}, with a colon")
    if "://" not in text:
        return LocalFolder(Path(text))
    if text.startswith("file://"):  # whose renames are atomic, which pyarrow's writes are not
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise TableError(f"{redacted(text)!r} names another host; expected file:///PATH")
        return LocalFolder(Path(url2pathname(parts.path)))
    return RemoteFolder(text)


def title_of(uri: str) -> str:
    """Return a URI as errors name it, without credentials and options."""
    return re.split("[?#]", redacted(uri))[0].replace(f"{HIDDEN}@", "")


class LocalFolder:
    """Implements ``Folder`` on this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return str(self.root)

    def list(self, prefix: str = "") -> list[str]:
        def refuse(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):  # never there, or removed meanwhile
                raise TableError(f"{error.filename}: cannot be listed: {error.strerror}") from error

        found = []
        for folder, subfolders, names in os.walk(self.root / _within(prefix, self, is_file=False), onerror=refuse):
            subfolders[:] = [each for each in subfolders if not each.startswith(".")]
            found += [Path(folder, name) for name in names if not name.startswith(".")]
        return sorted(path.relative_to(self.root).as_posix() for path in found)

    def read(self, name: str) -> bytes:
        return read_bytes(self.root / _within(name, self))

    def write(self, name: str, data: bytes) -> None:
        write_bytes(self.root / _within(name, self), data)

    def remove(self, name: str) -> None:
        path = self.root / _within(name, self)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise TableError(f"{path}: cannot be removed: {error.strerror}") from error


class RemoteFolder:
    """Implements ``Folder`` on a file system of ``pyarrow.fs``; errors that may pass are tried again for seconds."""

    def __init__(self, uri: str) -> None:
        self._title = title_of(uri)
        self._secrets = secrets_in(uri)
        self._files, root = self._try("", "opened", lambda: _file_system(uri))
        self._root = root.rstrip("/")

    def __str__(self) -> str:
        return self._title

    def list(self, prefix: str = "") -> list[str]:
        from pyarrow import fs

        top = f"{self._root}/{_within(prefix, self, is_file=False)}".rstrip("/")
        selector = fs.FileSelector(top, recursive=True, allow_not_found=True)
        found = self._try(prefix, "listed", lambda: self._files.get_file_info(selector))
        names = (each.path[len(self._root) + 1 :] for each in found if each.type == fs.FileType.File)
        return sorted(name for name in names if not any(part.startswith(".") for part in name.split("/")))

    def read(self, name: str) -> bytes:
        path = f"{self._root}/{_within(name, self)}"

        def read() -> bytes:
            with self._files.open_input_file(path) as file:
                size = file.size()
                data = b"" if size > MAX_FILE_BYTES else bytes(file.read(size + 1))
            if size > MAX_FILE_BYTES:
                raise TableError(f"{self}/{name}: cannot be read: larger than {MAX_FILE_BYTES} bytes")
            if len(data) != size:
                raise OSError(f"{len(data)} bytes of {size} came")
            return data

        return self._try(name, "read", read)

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{_within(name, self)}"

        def write() -> None:
            if self._files.type_name not in OBJECT_STORES:
                self._files.create_dir(path.rpartition("/")[0], recursive=True)
            with self._files.open_output_stream(path) as file:
                file.write(data)
            # An upload that broke off may have been completed as it was by closing it.
            if (size := self._files.get_file_info(path).size) != len(data):
                raise OSError(f"{size or 0} bytes of {len(data)} arrived")

        self._try(name, "written", write)

    def remove(self, name: str) -> None:
        path = f"{self._root}/{_within(name, self)}"
        with suppress(MissingFileError):
            self._try(name, "removed", lambda: self._files.delete_file(path))

    def _try(self, name: str, done: str, act: Callable[[], T]) -> T:
        """Return what a call returns; its error is raised outside of the handler, so that none chains the client's."""
        where = "/".join(part for part in (str(self), name) if part)
        for pause in (*PAUSES, None):
            try:
                return interruptible(act)
            except TableError:
                raise
            except Exception as error:  # pyarrow raises its own of ValueError, OSError, NotImplementedError and more
                is_lasting = not isinstance(error, OSError) or _is_lasting(error)
                kind = LastingTableError if is_lasting else TableError
                if isinstance(error, FileNotFoundError):
                    kind = MissingFileError
                reason = self._reason(error)
            if pause is None or is_lasting:
                break
            time.sleep(pause * random.uniform(0.5, 1.5))  # hosts of a fleet that failed together come back apart
        raise kind(f"{where}: cannot be {done}: {reason}")

    def _reason(self, error: Exception) -> str:
        """Say what went wrong and what to do; in the client's own words only where these are not known."""
        text = " ".join(str(error).split())
        for words, meaning in _MEANINGS.items():
            if _says(error, words):
                return meaning
        if isinstance(error, FileNotFoundError):
            return _ABSENT
        return printable(redacted(f"{type(error).__name__}: {text}", self._secrets))[:MESSAGE_LIMIT]


def _file_system(uri: str) -> Any:
    """Return the file system of a URI, and the path there."""
    from pyarrow import fs

    name, value = _OPTIONS.get(uri.partition("://")[0].lower(), ("", ""))
    if name and name not in uri:
        with suppress(ValueError):  # a pyarrow that does not know it, or an error that is raised once more below
            return fs.FileSystem.from_uri(f"{uri}{'&' if '?' in uri else '?'}{name}={value}")
    return fs.FileSystem.from_uri(uri)


def _is_lasting(error: OSError) -> bool:
    """Return True for an error that no other try mends: a file that is not there, a right that is missing."""
    if isinstance(error, FileNotFoundError | PermissionError | FileExistsError | NotADirectoryError):
        return True
    return _says(error, _LASTING) and not _says(error, _UNREACHED)


def _says(error: Exception, words: Iterable[str]) -> bool:
    """Return True if an error's text holds one of these words outside of the names that it quotes."""
    text = _QUOTED.sub("", " ".join(str(error).lower().split()))
    return any(word in text for word in words)


def _within(name: str, folder: Folder, *, is_file: bool = True) -> str:
    """Return a name that leads nowhere but below a folder; TableError for another."""
    parts = name.split("/")
    is_plain = name.isprintable() and "\\" not in name and not {"", ".", ".."}.intersection(parts)
    if not is_plain and (is_file or name):
        raise TableError(
            f"{folder}: {name!r} is no name of a file below it; expected parts between slashes, none of "
            "them empty, . or .."
        )
    return name
