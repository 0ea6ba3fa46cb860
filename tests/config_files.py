"""Hugging Face configs for tests: fields in a file, and what is read of it or refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import InvalidShapeError
from autotune.models import ModelShape, load_config

# Fields as published in each model's config.json; what is irrelevant here is left out.
LLAMA: dict[str, Any] = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


def check_read(folder: Path, fields: dict[str, Any], expected: ModelShape) -> None:
    """Assert that these fields are read as that model, but for its name and source."""
    path = _written(folder, fields)
    model = load_config(path)
    assert model.name == model.source == str(path)
    assert model == replace(expected, name=str(path), source=str(path))


def check_refused(folder: Path, fields: dict[str, Any], parts: list[str], *, longest: int) -> None:
    """Assert that these fields are refused in one line with these parts, of so many characters beside the path."""
    path = _written(folder, fields)
    with pytest.raises(InvalidShapeError) as caught:
        load_config(path)
    message = str(caught.value)
    assert message.startswith(f"model={str(path)!r} ")
    assert all(part in message for part in parts), message
    assert "\n" not in message
    assert len(message) < len(str(path)) + longest


def _written(folder: Path, fields: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return path
