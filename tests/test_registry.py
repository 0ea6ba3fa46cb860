"""Operations are found by name, and what they need is said where it is missing."""

import importlib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from autotune import references, registry
from autotune.dispatch import get_kernel
from autotune.errors import MissingDependencyError, UnknownNameError, UsageError
from autotune.operation import FOLDER_NAMES
from autotune.shape import AttentionShape
from autotune.table.compilations import COMPILATIONS
from autotune.table.portfolios import PORTFOLIOS
from autotune.table.shipped import GRIDS, SWEEPS
from autotune.tuning import tune


def test_a_kernel_without_its_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError("No module named 'triton'", name="triton")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(MissingDependencyError, match="triton is not installed; `pip install torch triton`"):
        references.load("somewhere:KERNEL")


@pytest.mark.parametrize("reference", ["nowhere:KERNEL", "autotune.shape:NOTHING"])
def test_a_reference_that_cannot_be_loaded_is_named(reference: str) -> None:
    with pytest.raises(UnknownNameError, match=f"reference='{reference}' cannot be loaded: "):
        references.load(reference)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_operations", dict(registry._operations))
    monkeypatch.setattr(registry, "_implementations", dict(registry._implementations))


@pytest.mark.usefixtures("registered")
def test_a_broken_package_of_somebody_elses_stops_nobody() -> None:
    before = registry.implementations_of("flash_attention")
    registry.register_implementation("flash_attention", "broken", "nowhere:IMPLEMENTATION")
    with pytest.warns(RuntimeWarning, match="reference='nowhere:IMPLEMENTATION' cannot be loaded"):
        assert registry.implementations_of("flash_attention") == before
    with pytest.raises(UnknownNameError, match="nowhere"):  # asked for by name
        registry.get_implementation("flash_attention", "broken")


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("text", ["raise RuntimeError('no such board')", "raise OSError(5, 'bus')", "def"], ids=str)
def test_a_package_that_raises_at_import_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    name = f"raises_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    registry.register_implementation("flash_attention", "broken", f"{name}:IMPLEMENTATION")
    with pytest.warns(RuntimeWarning, match=f"reference='{name}:IMPLEMENTATION' cannot be loaded"):
        assert "broken" not in [each.name for each in registry.implementations_of("flash_attention")]


@pytest.mark.usefixtures("registered")
def test_what_is_registered_has_the_name_it_is_registered_by() -> None:
    triton = registry.implementation_reference("flash_attention", "triton")
    registry.register_implementation("flash_attention", "other", triton)
    with pytest.raises(UnknownNameError, match="'flash_attention/triton'; expected an Implementation"):
        registry.get_implementation("flash_attention", "other")
    registry.register("other", triton)
    with pytest.raises(UnknownNameError, match="expected an Operation"):
        registry.get_operation("other")


def test_a_class_derived_from_a_shape_class_is_another_problem_everywhere() -> None:
    class Longer(AttentionShape):
        """A shape with a meaning of its own."""

    shape = Longer(batch=1, heads=1, seq_q=64, head_dim=64)
    with pytest.raises(UnknownNameError, match="no operation takes a Longer"):
        get_kernel(shape, device="NVIDIA H200")
    taken = r"is of type Longer; operation='flash_attention' takes AttentionShape$"
    with pytest.raises(UsageError, match=taken):
        get_kernel(shape, device="NVIDIA H200", operation="flash_attention")
    with pytest.raises(UsageError, match=taken):
        tune(shape, operation="flash_attention")


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    "reference", ["mine.space.IMPLEMENTATION", "noattr", "mine:", ":IMPLEMENTATION", "a b:c", "a:b:c"]
)
def test_a_reference_of_another_form_is_refused_at_once(reference: str) -> None:
    with pytest.raises(UsageError, match=r"is no reference; expected 'module:attribute'"):
        registry.register_implementation("flash_attention", "mine", reference)
    with pytest.raises(UsageError, match=r"is no reference; expected 'module:attribute'"):
        registry.register("mine", reference)
    assert "mine" not in registry.implementation_names("flash_attention")


NO_NAMES = ("", ".", ".hidden", "..", "a..b", "a.", "a b", "a/b", "../a", "a\nb", "-a", *sorted(FOLDER_NAMES))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", NO_NAMES)
def test_an_operation_has_a_name_that_a_folder_of_tables_can_have(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        registry.register(name, "my_package.space:OPERATION")
    text = str(raised.value)
    assert text.startswith(f"operation={name!r} is not allowed")
    assert "expected letters, digits, '_' and '-'" in text
    assert "bench, compilations, grids, portfolios, sweeps" in text
    assert name not in registry.operation_names()


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", ["softmax", "rms_norm-2", "my_package.kernels.add", "größe"])
def test_names_of_kernels_in_modules_are_allowed(name: str) -> None:
    registry.register(name, "my_package.space:OPERATION")
    assert name in registry.operation_names()


def test_an_operation_of_a_package_with_another_name_is_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    group = references.OPERATION_ENTRY_POINTS
    points = tuple(EntryPoint(name, "no_such.space:OPERATION", group) for name in ("sweeps", "a/b"))
    monkeypatch.setattr(references, "_scan", lambda: {group: points})
    assert not {"sweeps", "a/b"} & set(registry.operation_names())
    told = registry.broken_registrations()
    assert [line.partition(" is not")[0] for line in told] == ["operation='sweeps'", "operation='a/b'"]


def test_every_folder_of_results_that_is_no_operations_is_refused_as_a_name() -> None:
    assert {COMPILATIONS, GRIDS, PORTFOLIOS, SWEEPS} <= FOLDER_NAMES
    root = Path(__file__).resolve().parent.parent / "results"
    folders = {path.name for place in root.iterdir() if place.is_dir() for path in place.iterdir()}
    assert folders <= {*registry.operation_names(), *FOLDER_NAMES}


@pytest.mark.usefixtures("registered")
def test_an_implementation_of_a_misspelt_operation_is_named_where_names_are_listed() -> None:
    registry.register_implementation("flash_atention", "mine", "mine.space:IMPLEMENTATION")
    names = (
        "triton, gluon_hopper, gluon_hopper_fp8, triton_split_keys, triton_masked, triton_split_width, "
        "triton_split_values, flex"
    )
    with pytest.raises(UnknownNameError, match=f"registered: {names}; flash_atention/mine is registered too, but no"):
        registry.get_implementation("flash_attention", "mine")
    with pytest.raises(UnknownNameError, match="flash_atention/mine"):
        tune(AttentionShape(batch=1, heads=1, seq_q=64, head_dim=64), implementations="mine")
