"""The reference has every public name, and every docstring says what a user must know."""

import inspect
import re
from typing import Final

import pytest

import autotune
import autotune.errors
from tests.docs.blocks import DOCS

REFERENCE: Final = (DOCS / "api.md").read_text(encoding="utf-8")
FUNCTIONS: Final = [name for name in autotune.__all__ if inspect.isfunction(getattr(autotune, name))]
DOCUMENTED: Final = [name for name in autotune.__all__ if name != "__version__"]
# Without arguments that could be wrong.
NEVER_RAISE: Final = {"reload", "stats", "unseal"}


def test_the_reference_has_every_public_name() -> None:
    named = re.findall(r"^::: autotune\.([\w.]+)$", REFERENCE, re.M)
    own = {each for each in named if not each.startswith("errors.")}
    errors = {each.removeprefix("errors.") for each in named if each.startswith("errors.")}
    assert own | (errors & set(DOCUMENTED)) == set(DOCUMENTED)
    assert errors == {
        name
        for name, kind in vars(autotune.errors).items()
        if inspect.isclass(kind) and issubclass(kind, autotune.errors.AutotuneError)
    }


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_public_name_has_a_docstring(name: str) -> None:
    text = inspect.getdoc(getattr(autotune, name)) or ""
    assert text.split("\n\n")[0].endswith((".", ":"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_raises_and_shows_a_call(name: str) -> None:
    text = inspect.getdoc(getattr(autotune, name)) or ""
    assert re.search(rf"\b{name}\(", text.partition("Example")[2]), "no example"
    assert "Raises:" in text or name in NEVER_RAISE
    arguments = inspect.signature(getattr(autotune, name)).parameters
    assert [each for each in arguments if not re.search(rf"\b{each}\b", text)] == []


@pytest.mark.parametrize(
    "name", ["append_kv", "attention", "attention_varlen", "merge_attention", "paged_decode", "paged_prefill"]
)
def test_a_function_of_tensors_says_their_sizes_and_types(name: str) -> None:
    text = inspect.getdoc(getattr(autotune, name)) or ""
    assert re.search(r"``(q |k )?\[[^\]]+\]``", text), "no sizes"
    assert re.search(r"fp16|fp32|dtype", text), "no types"
