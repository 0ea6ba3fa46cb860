"""The object that ``@autotune.tuned`` leaves in a kernel's place: it launches as Triton's autotuner does."""

import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any, Final, Literal, NamedTuple, get_args

from autotune import platforms
from autotune.decorated.call_arguments import Inputs, Maker, dtypes_of, tensor_of
from autotune.decorated.call_keys import make_reader
from autotune.decorated.configs import Configs
from autotune.decorated.contract import Contract, make_contract, make_cost
from autotune.decorated.definition import KernelDefinition
from autotune.decorated.first_call import has_row, hold_call, search_once
from autotune.decorated.grids import evaluate
from autotune.decorated.key_shapes import KernelShape, make_shape_class
from autotune.decorated.launch import Launched, is_without_gpu, without_gpu
from autotune.decorated.pruned import Pruning
from autotune.decorated.recorded_call import record
from autotune.decorated.signature import Signature
from autotune.dispatch import TunedKernel, pick_for_device
from autotune.dispatch.events import watch_compiles
from autotune.dispatch.picks import on_reload
from autotune.errors import UsageError
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.own_kernels import find_reference
from autotune.registry import find_kernel, register_kernel
from autotune.space import Config
from autotune.trial import Candidate

Mode = Literal["table", "first_call"]
MODES: Final = get_args(Mode)

_kernels: "weakref.WeakSet[DecoratedKernel]" = weakref.WeakSet()


class Launching(NamedTuple):
    """The options that a launch of one key adds to its arguments, and where they come from."""

    options: dict[str, Any]
    hook: Callable[..., Any] | None
    config: Any
    tuned: TunedKernel | None
    candidate: Candidate | None


class DecoratedKernel:
    """A kernel that launches with the config that the tables have for its arguments.

    ``kernel[grid](*args, **kwargs)`` launches; ``operation``, ``implementation``, ``definition`` and ``launched`` are
    what a search takes. ``fn``, ``base_fn``, ``arg_names``, ``configs``, ``keys``, ``best_config`` and ``cache`` are as
    Triton's autotuner has them.
    """

    def __init__(
        self,
        kernel: Any,
        signature: Signature,
        configs: Configs,
        key: Mapping[str, type],
        pruning: Pruning,
        *,
        mode: Mode,
        budget: float,
        name: str,
        module: str,
        inputs: Inputs | None,
        grid: Any,
        cost: Callable[[Any], Any] | None,
        launching: Mapping[str, Any],
        defining: Mapping[str, Any],
    ) -> None:
        self.fn = kernel
        self.base_fn = signature.function
        self.arg_names = list(signature.names)
        self.configs = configs.triton
        self.keys = list(key)
        self.best_config: Any = None
        self.mode = mode
        self.budget = budget
        self.__name__ = signature.function.__name__
        self.__doc__ = signature.function.__doc__
        self.__module__ = signature.function.__module__
        self.signature = signature
        self._configs = configs
        self._key = dict(key)
        self._pruning = pruning
        self._cost = cost
        given = configs.given | signature.heuristics
        self.maker = Maker(name, signature, inputs, self._key, given)
        self.launched = Launched(name, kernel, signature, configs, self.maker, grid, **launching)
        self.name = name
        self.definition = KernelDefinition(name, signature, self.maker, self.launched, self.prune, **defining)
        self._plans: dict[Any, Callable[[tuple[Any, ...], Mapping[str, Any]], Any]] = {}
        self._served: dict[Any, Launching] = {}
        self.prune_for = lru_cache(maxsize=1024)(self._prune)
        self.modules = tuple(dict.fromkeys((self.__module__, module)))
        self.is_local = "<locals>" in self.base_fn.__qualname__
        self.register()
        _kernels.add(self)

    def register(self) -> None:
        """Register the operation, but for a kernel inside a function: two of those would share its name.

        One that had this operation before is replaced, as a cell of a notebook or a module does that runs again.
        """
        if not self.is_local:
            register_kernel(self)

    @property
    def reference(self) -> str:
        """The place of the kernel, ``"module:name"``; "" where no module has a name for it."""
        return find_reference(self, self.base_fn, self.modules)

    @cached_property
    def shape_class(self) -> type[Any]:
        """The class of the kernel's shapes: a field for each name of the key, ``dtype`` and ``dtypes``."""
        name = "".join(word.capitalize() for word in self.__name__.split("_"))
        follow = self.maker.follow if self.maker.is_declared else None
        return make_shape_class(
            f"{name}Shape", self.__module__, self._key, self.signature.constants, follow, self.maker.size_names
        )

    @cached_property
    def _contract(self) -> Contract:
        arguments = partial(self.maker.make, device="meta")
        return make_contract(
            self.name,
            self.definition,
            self.launched,
            self.signature,
            self.shape_class,
            self._configs,
            self.prune,
            make_cost(self._cost, arguments),
            self.maker.calls,
        )

    @property
    def operation(self) -> Operation[Any]:
        return self._contract.operation

    @property
    def implementation(self) -> Implementation[Any]:
        return self._contract.implementation

    @property
    def cache(self) -> dict[Any, Any]:
        """The configs that were launched so far, by key."""
        return {key: served.config for key, served in self._served.items()}

    def prune(self, shape: KernelShape) -> tuple[Config, ...]:
        """Return the configs that ``prune_configs_by`` leaves for a shape, all without it."""
        return self._configs.listed if self._pruning.is_empty else self.prune_for(shape)

    def _prune(self, shape: KernelShape) -> tuple[Config, ...]:
        if not self.maker.is_declared and shape not in self.maker.calls:
            raise UsageError(
                f"{self.name}: prune_configs_by needs arguments, and inputs= does not say those of {shape}"
            )
        return self._configs.ours(self._pruning.kept(self.configs, self.maker.make(shape, device="meta")))

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return partial(self.run, grid=grid)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch, as ``kernel[grid](*args, **kwargs)`` does; with ``warmup`` compile alone."""
        plan = self._plans.get((len(args), *kwargs) if kwargs else len(args))
        if plan is None:
            plan = self._plan(args, kwargs)
        key = plan(args, kwargs)
        served = self._served.get(key) or self._serve(key, args, kwargs, grid)
        if served.hook is not None:
            served.hook({**dict(zip(self.arg_names, args, strict=False)), **kwargs, **served.options})
        self.best_config = served.config
        try:
            return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs, **served.options)
        except Exception as error:
            if is_without_gpu(error):
                raise without_gpu(self.name) from error
            if served.tuned is None or served.candidate is None or not served.tuned.give_way(error, served.candidate):
                raise
        self._served.pop(key, None)  # unless another thread, or a reload, has forgotten it
        return self.run(*args, grid=grid, warmup=warmup, **kwargs)

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> list[Any]:
        """Compile ahead what a launch with these arguments would run; returns it as a list, as Triton's autotuner does,
        which compiles every config."""
        return [self.run(*args, grid=grid, warmup=True, **kwargs)]

    def _plan(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """Make what reads the key of calls of one form: the key's values, and the dtypes of all else that may have one.

        What is a plain number in this call may be a tensor in the next.
        """
        named = [*self.arg_names[: len(args)], *kwargs]
        if twice := [name for name in kwargs if name in self._configs.given]:
            raise UsageError(f"{self.name}: the configs give {', '.join(twice)}; leave it out of the call")
        places = [place for place, name in enumerate(named) if name in self._key]
        constants = {*self.signature.constants}
        tensors = [place for place, name in enumerate(named) if place not in places and name not in constants]
        read = make_reader(places, tensors, list(kwargs))
        self._plans[(len(args), *kwargs) if kwargs else len(args)] = read
        return read

    def shape_of(self, named: Mapping[str, Any]) -> KernelShape:
        """Return the shape of a call's arguments.

        Raises:
            UsageError: an argument of the key is missing.
            InvalidShapeError: one has a value that the key's type does not allow.
        """
        known = {**self.signature.defaults, **named}
        if missing := [name for name in self._key if name not in known]:
            raise UsageError(f"{self.name}: the call lacks {', '.join(missing)}, of the key")
        dtype, dtypes = dtypes_of(named, self.arg_names)
        fields = {name: known[name] for name in self._key}
        shape: KernelShape = self.shape_class(**fields, dtype=dtype, dtypes=dtypes or dtype)
        settled = shape.settled_dtype()
        return shape if settled == dtype else replace(shape, dtype=settled)  # type: ignore[call-arg]

    def _serve(self, key: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any) -> Launching:
        known = self._served  # before the pick: a reload meanwhile leaves this one behind, and no old pick in the new
        named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        shape = self.shape_of(named)
        if not self.maker.is_declared:
            self.maker.calls[shape] = record(named)
        if not self._has_operation():
            config, tuned, candidate = self.prune(shape)[0], None, None
        else:
            tuned = self.pick(shape, named, grid)
            candidate = tuned.candidate
            config = candidate.config
        chosen = self._configs.triton_config(config)
        served = known[key] = Launching(chosen.all_kwargs(), chosen.pre_hook, chosen, tuned, candidate)
        return served

    def _has_operation(self) -> bool:
        """Return True if the tables are asked for this kernel; else warn where that is not to be expected.

        Raises:
            UsageError: another kernel of a module has its operation, too.
        """
        owner, why = find_kernel(self.name), ""
        if self.is_local:
            why = "a kernel inside a function is not searched" if self.mode == "first_call" else ""
        elif owner is None:  # the one that replaced it is gone
            self.register()
            return True
        elif owner is self:
            return True
        elif reference := self.reference:
            now = owner.reference or "another kernel"
            raise UsageError(f"{reference}: {self.name} is the operation of {now} now; give one another name=")
        else:
            why = "it was defined again since, and the new kernel has its tables"
        if why:
            warnings.warn(f"{self.name}: {why}; its first config runs", RuntimeWarning, stacklevel=5)
        return False

    def pick(self, shape: KernelShape, named: Mapping[str, Any], grid: Any) -> TunedKernel:
        """Pick by the tables; tune first where that is asked for and no row is of this shape."""
        place = _place_of(named.values())
        pick = partial(pick_for_device, shape, place, self.name)
        tuned = pick()
        if place is None:
            if self.mode == "first_call" and not has_row(tuned):
                text = f"{self.name}: mode='first_call' searches on a GPU alone; here {tuned.config} runs unsearched"
                warnings.warn(text, RuntimeWarning, stacklevel=4)
            return tuned
        watch_compiles(self.__module__)
        if self.mode == "first_call" and not has_row(tuned):
            source = self.implementation.source_hash
            grids = partial(evaluate, grid, self.fn, {**self.signature.defaults, **named}, self._configs)
            holding = partial(hold_call, self.maker, shape, named, grids)
            return search_once(self.operation, shape, place, source, budget=self.budget, pick=pick, holding=holding)
        return tuned

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError(f"{self.name} is launched as {self.__name__}[grid](...)")

    def __repr__(self) -> str:
        return f"<tuned {self.name}: {len(self.configs)} configs by {', '.join(self.keys)}>"


def _place_of(values: Any) -> int | None:
    """Return the index of the GPU that the first tensor is on; None on the CPU, where Triton interprets."""
    for value in values:
        if (tensor := tensor_of(value)) is not None:
            return tensor.device.index if tensor.device.type != "cpu" and tensor.device.type != "meta" else None
    return platforms.current_index() if platforms.has_gpu() else None


def _forget() -> None:
    for kernel in list(_kernels):
        kernel._served = {}  # a thread that is still picking keeps its pick in the old one


on_reload.append(_forget)
