"""Remote folders: files by their names below a local folder or any URI that ``pyarrow.fs`` opens.

Each file is written once, whole or not at all: locally by a rename, in an object store by its own rule.
"""

import os
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

from autotune.errors import TableError
from autotune.table.files import read_bytes, write_bytes

HIDDEN: Final = "***"


class Folder(Protocol):
    """A folder of files, named by relative paths with slashes."""

    def __str__(self) -> str:
        """Return the place without credentials."""

    def list(self, prefix: str = "") -> list[str]:
        """Return the names of all files below a folder, sorted; none where it is not there."""

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file; readers see it old or new."""


def open_folder(uri: str | Path) -> Folder:
    """Open a local path or a URI, such as ``s3://bucket/tables``; nothing is created.

    Raises:
        TableError: the URI cannot be opened; credentials in it are left out of the message.
    """
    text = str(uri)
    if "://" not in text:
        return LocalFolder(Path(text))
    if text.startswith("file://"):  # whose renames are atomic, which pyarrow's writes are not
        return LocalFolder(Path(url2pathname(urlsplit(text).path)))
    return RemoteFolder(text)


class LocalFolder:
    """Implements ``Folder`` on this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return str(self.root)

    def list(self, prefix: str = "") -> list[str]:
        top = self.root / prefix
        found = (Path(folder) / name for folder, _, names in os.walk(top) for name in names if not name.startswith("."))
        return sorted(path.relative_to(self.root).as_posix() for path in found)

    def read(self, name: str) -> bytes:
        return read_bytes(self.root / name)

    def write(self, name: str, data: bytes) -> None:
        write_bytes(self.root / name, data)


class RemoteFolder:
    """Implements ``Folder`` on a file system of ``pyarrow.fs``."""

    def __init__(self, uri: str) -> None:
        from pyarrow import fs

        self._uri = urlsplit(uri)
        try:
            self._files, self._root = fs.FileSystem.from_uri(uri)
        except Exception as error:
            raise TableError(f"{self}: cannot be opened: {type(error).__name__}") from None

    def __str__(self) -> str:
        return f"{self._uri.scheme}://{self._uri.hostname or ''}{self._uri.path}"

    def list(self, prefix: str = "") -> list[str]:
        from pyarrow import fs

        top = f"{self._root}/{prefix}".rstrip("/")
        found = self._files.get_file_info(fs.FileSelector(top, recursive=True, allow_not_found=True))
        return sorted(each.path[len(self._root) + 1 :] for each in found if each.type == fs.FileType.File)

    def read(self, name: str) -> bytes:
        with self._files.open_input_file(f"{self._root}/{name}") as file:
            return bytes(file.read())

    def write(self, name: str, data: bytes) -> None:
        with self._files.open_output_stream(f"{self._root}/{name}") as file:
            file.write(data)
