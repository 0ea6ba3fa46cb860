"""Bounds of what a Parquet file unfolds to, from its footer and the headers of its pages, before anything is decoded.

The footer says how much a file unfolds to, and may say anything: a reader allocates what the header of each page asks
for. Both are read here, since pyarrow ends the process where a footer lacks a part that one of its properties shows.
They are in Thrift's compact protocol; https://parquet.apache.org/docs/file-format says what their fields are.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from autotune.errors import TableError

MAX_COLUMNS: Final = 256
MAX_FOOTER_BYTES: Final = 2**18  # a table of 109 columns has 11 kB; parsed, a footer takes some 20 times its bytes
MAX_PAGES: Final = 8192  # tables of ours have two for each column
MAX_DECODED_BYTES: Final = 64 * 2**20  # of all pages; those of ours unfold to 1.3 times their file
# Values that repeat take next to no bytes, and as much memory as any once they are rows. Trials that all failed alike
# take a byte for 9 values, others 1 to 2; a few thousand rows are let through whatever they take.
MAX_VALUES: Final = 16_000_000
VALUES_PER_BYTE: Final = 12
FEW_VALUES: Final = 500_000

_MAGIC: Final = b"PAR1"
_DELTA_BYTE_ARRAY: Final = 7  # texts by what they share with the one before: a byte may stand for any number of others
_DATA, _DICTIONARY, _INDEX = 5, 7, 6  # kinds of pages, by the field that describes each
_COUNT_AND_ENCODING: Final = {_DATA: (1, 2), _DICTIONARY: (1, 2), 8: (1, 4)}
_DEPTH: Final = (
    9  # file, row groups, row group, columns, column, its metadata, their lists, an element, and one to spare
)

# The header of a page as writers of today write it, of data or of a dictionary: the same bytes, read in a third of the
# time. A number is zigzag, in groups of seven bits; five groups are enough for 32 bits.
_NUMBER: Final = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
_USUAL_PAGE: Final = re.compile(
    rb"\x15%(n)b\x15(?P<size>%(n)b)\x15(?P<kept>%(n)b)(?:\x15%(n)b(?P<kind>[\x1c\x3c]))"
    rb"\x15(?P<count>%(n)b)\x15(?P<encoding>%(n)b)(?:\x15%(n)b\x15%(n)b(?:\x1c\x00)?|[\x11\x12])?\x00\x00"
    % {b"n": _NUMBER},
    re.DOTALL,
)
_PAGE_FIELDS: Final = ("size", "kept", "count", "encoding")
# Parts of a footer that are most of it and that nothing here is read from: what a column is, with its name, and in
# which order its values are.
_USUAL_ELEMENT: Final = re.compile(
    rb"(?:\x15[\x00-\x7f]\x25[\x00-\x7f]\x18(?P<length>[\x00-\x7f])(?P<name>[A-Za-z0-9_]*)"
    rb"(?:\x25[\x00-\x7f])?(?:\x4c\x1c\x00\x00)?|\x1c\x00)\x00",
    re.DOTALL,
)
# What a column of a row group is, as writers of today write it, with the fields that are read: the most of a footer.
_LENGTHS: Final = rb"(?:\x06|\x16%(n)b|\x26%(n)b%(n)b)" % {b"n": _NUMBER}
_PAGE_COUNT: Final = rb"\x15[\x00-\x7f]\x15[\x00-\x7f]\x15%(n)b\x00" % {b"n": _NUMBER}
_USUAL_CHUNK: Final = re.compile(
    rb"\x26%(n)b\x1c\x15[\x00-\x7f]\x19(?:\x25[\x00-\x7f]{2}|\x35[\x00-\x7f]{3})"
    rb"\x19\x18(?P<length>[\x00-\x7f])(?P<name>[A-Za-z0-9_]*)\x15[\x00-\x7f]"
    rb"\x16(?P<count>%(n)b)\x16%(n)b\x16(?P<size>%(n)b)\x26(?P<data>%(n)b)(?:\x26(?P<dictionary>%(n)b)\x29|\x49)"
    rb"(?:\x1c%(page)b|\x2c(?:%(page)b){2})(?:\x3c(?:\x16%(n)b\x19|\x29)%(lengths)b\x19%(lengths)b\x00)?\x00\x00"
    % {b"n": _NUMBER, b"page": _PAGE_COUNT, b"lengths": _LENGTHS},
    re.DOTALL,
)
_CHUNK_BEGINS: Final = 0x26

Fields = dict[int, Any]


class _MalformedError(Exception):
    """The bytes are no struct of Thrift, or not the one that stands here."""


def require_bounded(data: bytes, where: str) -> None:
    """Refuse the bytes of a file that would unfold to more than a table has.

    Raises:
        TableError: they would; they are no Parquet; or texts are encoded by their differences.
    """
    length = int.from_bytes(data[-8:-4], "little")
    if len(data) < 12 or data[:4] != _MAGIC or data[-4:] != _MAGIC or length > len(data) - 12:
        raise TableError(f"{where}: cannot be read as Parquet: it does not end with a footer")
    _require(where, "bytes of footer", length, MAX_FOOTER_BYTES)
    start = len(data) - 8 - length
    try:
        footer, _ = _struct(data, start, start + length, _DEPTH)
        _require_few(data, footer, where)
    except (_MalformedError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise TableError(
            f"{where}: cannot be read as Parquet: its footer or the header of a page is damaged"
        ) from error


def _require_few(data: bytes, footer: Fields, where: str) -> None:
    rows, groups = footer[3], footer[4]
    columns = max((len(group[1]) for group in groups), default=0)
    _require(where, "columns", columns, MAX_COLUMNS)
    _require(where, "values", rows * columns, min(MAX_VALUES, FEW_VALUES + VALUES_PER_BYTE * len(data)))
    pages = decoded = 0
    for group in groups:
        rows -= group[3]
        for chunk in group[1]:
            if 1 in chunk or chunk[3][5] != group[3] or group[3] < 0:  # in another file, or of nested values
                raise _MalformedError
            for size in _page_sizes(data, chunk[3], where):
                pages, decoded = pages + 1, decoded + size
                _require(where, "pages", pages, MAX_PAGES)
                _require(where, "decoded bytes", decoded, MAX_DECODED_BYTES)
    if rows != 0:
        raise _MalformedError


def _page_sizes(data: bytes, chunk: Fields, where: str) -> Iterator[int]:
    """Yield how many bytes each page of a column chunk unfolds to."""
    place, dictionary, left = chunk[9], chunk.get(11, 0), chunk[5]
    place = dictionary if 0 < dictionary < place else place
    end = place + chunk[7]
    if not 0 <= place <= end <= len(data):
        raise _MalformedError
    while left > 0:
        if (found := _USUAL_PAGE.match(data, place, end)) is not None:
            size, kept, count, encoding = map(_decoded, found.group(*_PAGE_FIELDS))
            kind, place = _DICTIONARY if found["kind"] == b"\x3c" else _DATA, found.end()
        else:
            header, place = _struct(data, place, end, _DEPTH)
            size, kept = header[2], header[3]
            kind = next((field for field in (*_COUNT_AND_ENCODING, _INDEX) if field in header), 0)
            count, encoding = (0, 0) if kind == _INDEX else (header[kind][field] for field in _COUNT_AND_ENCODING[kind])
        place += kept
        if size < 0 or kept < 0 or place > end:
            raise _MalformedError
        yield size
        if encoding == _DELTA_BYTE_ARRAY:
            raise TableError(f"{where}: a column of texts that are encoded by their differences is not read")
        left -= 0 if kind == _DICTIONARY else count
        if count < 0 or left < 0:
            raise _MalformedError


def _require(where: str, measure: str, count: int, limit: int) -> None:
    if count > limit:
        raise TableError(f"{where}: {count} {measure} are more than the {limit} allowed")


def _usual(data: bytes, place: int, end: int) -> tuple[Fields, int] | None:
    """Return what is read of a struct of a list, and the place after it, where writers of today write it so."""
    if data[place] == _CHUNK_BEGINS:
        found = _USUAL_CHUNK.match(data, place, end)
    else:
        found = _USUAL_ELEMENT.match(data, place, end)
    if found is None or (found["name"] is not None and len(found["name"]) != found["length"][0]):
        return None
    if found.re is _USUAL_ELEMENT:
        return {}, found.end()
    dictionary, *others = found.group("dictionary", "count", "size", "data")
    count, size, pages = map(_decoded, others)
    return {3: {5: count, 7: size, 9: pages, 11: _decoded(dictionary or b"\0")}}, found.end()


@lru_cache(maxsize=2**14)  # files of one writer repeat most
def _decoded(number: bytes) -> int:
    """Return a zigzag number of a usual struct."""
    value, _ = _varint(number, 0)
    return (value >> 1) ^ -(value & 1)


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return an unsigned number of at most 64 bits, and the place after it."""
    value = shift = 0
    while shift < 64:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    raise _MalformedError


def _struct(data: bytes, place: int, end: int, depth: int) -> tuple[Fields, int]:
    """Return the fields of a struct by number, and the place after it."""
    fields: Fields = {}
    field = 0
    while place < end:
        byte = data[place]
        place += 1
        if byte == 0:
            return fields, place
        if byte >> 4:
            field += byte >> 4
        else:
            number, place = _varint(data, place)
            field = (number >> 1) ^ -(number & 1)
        kind = byte & 15
        if kind in (5, 6):
            number, place = data[place], place + 1
            if number > 127:
                number, place = _varint(data, place - 1)
            fields[field] = (number >> 1) ^ -(number & 1)
        elif kind == 8 and (length := data[place]) < 128:
            fields[field], place = None, place + 1 + length
        elif kind in (1, 2):
            fields[field] = kind == 1
        else:
            fields[field], place = _value(data, place, end, kind, depth)
    raise _MalformedError


def _value(data: bytes, place: int, end: int, kind: int, depth: int) -> tuple[Any, int]:
    """Return a value of a kind of Thrift's, and the place after it; texts and fractions are passed over."""
    if kind in (4, 5, 6):
        number, place = _varint(data, place)
        return (number >> 1) ^ -(number & 1), place
    if kind == 8:
        length, place = _varint(data, place)
        return None, place + length
    if depth == 0 or place > end:
        raise _MalformedError
    if kind == 12:
        return _struct(data, place, end, depth - 1)
    if kind == 9:
        count, kind = data[place] >> 4, data[place] & 15
        place += 1
        if count == 15:
            count, place = _varint(data, place)
        if count > end - place:  # an element takes a byte at least
            raise _MalformedError
        if kind in (5, 6) and max(data[place : place + count], default=0) < 128:  # encodings
            return [(number >> 1) ^ -(number & 1) for number in data[place : place + count]], place + count
        values: list[Any] = []
        value: Any
        for _ in range(count):
            if kind == 12 and (usual := _usual(data, place, end)) is not None:
                value, place = usual
            else:
                value, place = (None, place + 1) if kind in (1, 2) else _value(data, place, end, kind, depth - 1)
            values.append(value)
        return values, place
    if kind in (3, 7):
        return None, place + (1 if kind == 3 else 8)
    raise _MalformedError  # of sets and maps a file has none
