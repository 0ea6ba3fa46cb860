"""Tables as the first release wrote them."""

import io
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from autotune.table.files import sha256
from autotune.table.first_release import operation_then
from autotune.table.parquet import encode
from autotune.trial import Trial


def first_release_bytes(trials: Sequence[Trial]) -> bytes:
    """Return the bytes of trials of one implementation in schema "1"."""
    table = pq.read_table(io.BytesIO(encode(trials)))
    then = operation_then(trials[0].operation, trials[0].implementation)
    assert then is not None
    place = table.schema.get_field_index("operation")
    table = table.set_column(place, "operation", pa.array([then] * len(table))).drop_columns(["implementation"])
    table = table.append_column("varlen", pa.array([False] * len(table)))
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"autotune.schema_version": "1", "autotune.operation": then})
    return sink.getvalue()


def append_as_then(root: Path, trials: Sequence[Trial]) -> Path:
    """Append a part as the first release did."""
    data = first_release_bytes(trials)
    then = operation_then(trials[0].operation, trials[0].implementation)
    folder = root / trials[0].device.slug / str(then)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{sha256(data)}.parquet"
    path.write_bytes(data)
    return path
