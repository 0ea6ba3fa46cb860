"""Spaces and shapes grow and shrink, and every shipped measurement answers as before, or is listed with a reason."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass, replace
from typing import Any, ClassVar, Final

import pytest
import torch

from autotune import call_shapes, platforms, references, registry
from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import get_kernel, pick_for_device, reload
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.search.sweeps import sweep_name
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.space import Config, Parameter, Space
from autotune.table import ranked, shipped_outsiders, shipped_sweeps, shipped_winners
from autotune.trial import Policy, Trial

NEW: Final = Parameter("PERSISTENT", (0, 1), absent=0)
IMPLEMENTATIONS: Final = [
    (name, each) for name in registry.operation_names() for each in registry.implementation_names(name)
]
WINNERS: Final = {key: shipped_winners(key[0], implementation=key[1]) for key in IMPLEMENTATIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownAttentionShape(AttentionShape):
    """A dense shape of a later release, which knows one more feature."""

    FAMILY: ClassVar[tuple[str, ...]] = (*AttentionShape.FAMILY, "sparse")
    ABSENT: ClassVar = {**AttentionShape.ABSENT, "sparse": False}

    sparse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownPagedShape(PagedShape):
    """A paged shape of a later release, which knows one more feature."""

    FAMILY: ClassVar[tuple[str, ...]] = (*PagedShape.FAMILY, "sparse")
    ABSENT: ClassVar = {**PagedShape.ABSENT, "sparse": False}

    sparse: bool = False


class GrownShapes(dict[type[Shape], type[Shape]]):
    """The later release's class of each class of shapes, made where it is not written out."""

    def __missing__(self, shape_class: type[Shape]) -> type[Shape]:
        self[shape_class] = make_dataclass(
            f"Grown{shape_class.__name__}",
            [("sparse", bool, False)],
            bases=(shape_class,),
            namespace={"FAMILY": (*shape_class.FAMILY, "sparse"), "ABSENT": {**shape_class.ABSENT, "sparse": False}},
            frozen=True,
            slots=True,
            kw_only=True,
        )
        return self[shape_class]


GROWN: Final = GrownShapes({AttentionShape: GrownAttentionShape, PagedShape: GrownPagedShape})


def grown(implementation: Implementation[Any]) -> Implementation[Any]:
    """The implementation with one more parameter."""
    space = implementation.space

    def without(config: Config) -> Config:
        return Config({name: value for name, value in config.items() if name != NEW.name})

    def default(shape: Any, device: Device) -> Config:
        return Config({**space.default(shape, device), NEW.name: 0})

    def reject(config: Config, shape: Any, device: Device) -> str | None:
        return space.reject(without(config), shape, device)

    return replace(implementation, space=Space((*space.parameters, NEW), reject, default, removed=space.removed))


def rebuilt(
    patch: pytest.MonkeyPatch,
    implementation: Callable[[Implementation[Any]], Implementation[Any]],
    operation: Callable[[Operation[Any]], Operation[Any]] = lambda operation: operation,
) -> None:
    """Let the registry answer with changed operations and implementations."""
    load = references.load

    def changed(path: str) -> Any:
        found = load(path)
        if isinstance(found, Implementation):
            return implementation(found)
        return operation(found) if isinstance(found, Operation) else found

    patch.setattr(registry, "load", changed)
    reload()


@pytest.fixture(autouse=True)
def here(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An H200 with the shipped tables alone."""
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path))
    monkeypatch.setattr(platforms, "current_device", lambda index=0: NVIDIA_H200)
    monkeypatch.setattr(platforms, "current_index", lambda: 0)
    reload()
    yield
    monkeypatch.undo()
    reload()


def as_grown(shape: Shape) -> Shape:
    """The same problem in the later release's words."""
    fields = shape.as_dict()
    return GROWN[type(shape)](**fields)


@pytest.mark.parametrize("key", [key for key in IMPLEMENTATIONS if WINNERS[key]], ids="/".join)
def test_a_new_parameter_and_a_new_field_leave_every_winner_where_it_was(
    key: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    operation, name = key
    rebuilt(monkeypatch, grown, lambda found: replace(found, shape_class=GROWN[found.shape_class]))
    for winner in WINNERS[key]:
        kernel = get_kernel(as_grown(winner.shape), device=winner.device.name, operation=operation, among=(name,))
        assert (kernel.provenance.rung, kernel.implementation) == ("exact", name)
        assert kernel.config == Config({**winner.config, NEW.name: 0})
        assert kernel.provenance.row is not None
        assert kernel.provenance.row.timing == winner.timing
    assert not shipped_outsiders(operation)


@pytest.mark.parametrize("operation", registry.operation_names())
def test_a_new_parameter_and_a_new_field_leave_every_row_of_a_sweep(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {sweep.name: sweep.trials() for sweep in shipped_sweeps(operation)}
    rebuilt(monkeypatch, grown, lambda found: replace(found, shape_class=GROWN[found.shape_class]))
    after = {sweep.name: sweep.trials() for sweep in shipped_sweeps(operation)}

    def facts(trial: Trial) -> tuple[Any, ...]:
        return (
            *sorted((name, value) for name, value in trial.config.items() if name != NEW.name),
            trial.timing,
            trial.status,
        )

    assert {name: list(map(facts, rows)) for name, rows in after.items()} == {
        name: list(map(facts, rows)) for name, rows in before.items()
    }
    assert all(row.config[NEW.name] == 0 for rows in after.values() for row in rows)


def test_the_functions_serve_the_exact_rows_of_a_grown_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that give way to an implementation that their race lacked give way as before, and stand behind it."""
    found = [winner for key in IMPLEMENTATIONS for winner in WINNERS[key] if key[1] != "flex"]
    places = {(each.operation, each.shape, each.device) for each in found}
    before = {
        (operation, shape, device): pick_for_device(shape, device, operation) for operation, shape, device in places
    }
    assert sum(winner.device.model == NVIDIA_H200.model for winner in found) >= 180
    problems: dict[Any, list[Trial]] = {}
    for winner in found:
        problems.setdefault((winner.operation, winner.shape, winner.device), []).append(winner)
    fastest = {place: ranked(winners)[0].implementation for place, winners in problems.items()}
    rebuilt(monkeypatch, grown, lambda found: replace(found, shape_class=GROWN[found.shape_class]))
    monkeypatch.setattr(call_shapes, "AttentionShape", GrownAttentionShape)
    monkeypatch.setattr(call_shapes, "PagedShape", GrownPagedShape)
    call_shapes._dense_shape.cache_clear()
    for (operation, shape, device), implementation in fastest.items():
        kernel, old = pick_for_device(as_grown(shape), device, operation), before[operation, shape, device]
        assert (kernel.provenance.rung, kernel.implementation) == (old.provenance.rung, old.implementation)
        if kernel.provenance.rung == "exact":
            assert kernel.implementation == implementation
        else:
            assert (implementation, kernel.implementation) == ("triton", "gluon_hopper")
    dense = next(winner.shape for winner in found if winner.operation == "flash_attention")
    assert isinstance(dense, AttentionShape)
    sizes = (dense.batch, dense.seq_q, dense.heads, dense.head_dim)
    shape = call_shapes._dense_shape(sizes, sizes, dense.head_dim, torch.bfloat16, True, None, False)
    assert type(shape) is GrownAttentionShape
    call_shapes._dense_shape.cache_clear()


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (AttentionShape(batch=1, heads=8, seq_q=64, head_dim=128), "triton_b1_h8_s64_d128{}_full_bfloat16"),
        (PagedShape(batch=1, heads=8, max_context=64, head_dim=128), "triton_b1_h8_c64_d128{}_bfloat16"),
    ],
)
def test_a_new_field_names_the_sweeps_that_use_it_alone(shape: Shape, name: str) -> None:
    used = GROWN[type(shape)](**{**shape.as_dict(), "sparse": True})
    found = [sweep_name("triton", each, Policy()) for each in (shape, as_grown(shape), used)]
    assert found == [name.format(""), name.format(""), name.format("_sparse")]


def without_parameter(name: str, value: int | str) -> Callable[[Implementation[Any]], Implementation[Any]]:
    """Take a parameter out of the spaces that have it; their kernels have that value from now on."""

    def change(implementation: Implementation[Any]) -> Implementation[Any]:
        space = implementation.space
        if name not in [parameter.name for parameter in space.parameters]:
            return implementation

        def whole(config: Config) -> Config:
            return Config({p.name: config.get(p.name, value) for p in space.parameters})

        def default(shape: Any, device: Device) -> Config:
            return Config({key: each for key, each in space.default(shape, device).items() if key != name})

        return replace(
            implementation,
            space=Space(
                tuple(parameter for parameter in space.parameters if parameter.name != name),
                lambda config, shape, device: space.reject(whole(config), shape, device),
                default,
                removed={**space.removed, name: value},
            ),
        )

    return change


def without_value(name: str, value: int | str) -> Callable[[Implementation[Any]], Implementation[Any]]:
    """Take one value of a parameter out of the spaces that have it."""

    def change(implementation: Implementation[Any]) -> Implementation[Any]:
        parameters = tuple(
            replace(parameter, values=tuple(each for each in parameter.values if each != value))
            if parameter.name == name
            else parameter
            for parameter in implementation.space.parameters
        )
        return replace(implementation, space=replace(implementation.space, parameters=parameters))

    return change


@pytest.mark.parametrize(
    ("change", "is_gone", "reason"),
    [
        pytest.param(
            *(without_parameter("loads", "descriptor"), lambda config: config["loads"] == "pointer", "loads"),
            id="parameter",
        ),
        pytest.param(
            *(without_value("BLOCK_K", 32), lambda config: config["BLOCK_K"] == 32, "BLOCK_K"),
            id="value",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_rows_that_left_the_space_are_listed_and_all_others_answer_as_before(
    change: Callable[[Implementation[Any]], Implementation[Any]],
    is_gone: Callable[[Config], bool],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    winners = WINNERS["flash_attention", "triton"]
    rows = [
        row for sweep in shipped_sweeps("flash_attention") for row in sweep.trials() if row.implementation == "triton"
    ]
    gone = [winner for winner in winners if is_gone(winner.config)]
    stay = [winner for winner in winners if not is_gone(winner.config)]
    assert gone
    assert stay
    rebuilt(monkeypatch, change)
    kept = shipped_winners("flash_attention", implementation="triton")
    assert len(kept) == len(stay)
    for winner in stay:
        kernel = get_kernel(winner.shape, device=winner.device.name, operation="flash_attention", among=("triton",))
        assert kernel.provenance.rung == "exact"
        assert kernel.provenance.row is not None
        assert kernel.provenance.row.timing == winner.timing
    outsiders = [each for each in shipped_outsiders("flash_attention") if each.implementation == "triton"]
    assert len(outsiders) >= len(gone)
    assert all(reason in each.reason for each in outsiders)
    left = [
        row for sweep in shipped_sweeps("flash_attention") for row in sweep.trials() if row.implementation == "triton"
    ]
    assert len(left) == sum(not is_gone(row.config) for row in rows)


@pytest.mark.parametrize("operation", sorted({key[0] for key in IMPLEMENTATIONS if WINNERS[key]}))
def test_costs_and_baselines_take_a_shape_with_a_field_that_they_do_not_know(operation: str) -> None:
    shape = next(winner.shape for (name, _), winners in WINNERS.items() for winner in winners if name == operation)
    cost = registry.get_operation(operation).cost
    assert cost(as_grown(shape)) == cost(shape)
    for baseline in registry.load_baselines(operation):
        assert baseline.unsupported(as_grown(shape)) == baseline.unsupported(shape)
        if baseline.name == "cudnn":
            grown: Any = as_grown(shape)
            reason = baseline.unsupported(replace(grown, sparse=True))
            assert reason == "sparse=True is not supported by cudnn"


def test_a_baseline_that_takes_no_calls_of_users_is_not_served() -> None:
    rows = [row for row in WINNERS["paged_prefill", "triton"] if row.baseline == "cudnn"]
    assert rows
    for row in rows:
        kernel = get_kernel(row.shape, device=NVIDIA_H200.name, among="fastest", operation="paged_prefill")
        assert kernel.implementation in ("triton", "gluon_hopper")
