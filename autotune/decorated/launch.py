"""A decorated kernel's launches, as a search makes them and as callers of ``get_kernel`` do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from autotune.decorated.call_arguments import Arguments, Maker, tensor_of, with_tensor
from autotune.decorated.configs import Configs
from autotune.decorated.grids import require_grid
from autotune.decorated.key_shapes import KernelShape
from autotune.decorated.recorded_call import Grid
from autotune.decorated.signature import Signature
from autotune.errors import InputMismatchError, MissingDependencyError, UsageError
from autotune.space import Config

Hook = Callable[..., Any]


class Launched:
    """Implements ``autotune.implementation.Kernel`` for a decorated kernel.

    Each launch begins as Triton's autotuner begins its own: by the config's hook, then by ``pre_hook``, or what is to
    be zero is set to zero and what is to be restored is copied back.
    """

    def __init__(
        self,
        name: str,
        kernel: Any,
        signature: Signature,
        configs: Configs,
        maker: Maker,
        grid: Any,
        *,
        reset_to_zero: Sequence[str],
        restore_value: Sequence[str],
        pre_hook: Hook | None,
        post_hook: Hook | None,
    ) -> None:
        self.__module__ = signature.function.__module__  # whose compiles are watched
        self._name = name
        self._kernel = kernel
        self._signature = signature
        self._configs = configs
        self._maker = maker
        self._grid = grid
        self._zero = tuple(reset_to_zero)
        self._restored = tuple(restore_value)
        self._pre_hook = pre_hook
        self._post_hook = post_hook
        self._declared = lru_cache(maxsize=256)(lambda shape: maker.make(shape, device="meta"))

    def launch(self, config: Config, inputs: Arguments, outputs: tuple[torch.Tensor, ...]) -> None:
        grid = self._grid_of(config, inputs.shape)
        values = dict(inputs.values)
        for name, tensor in zip(inputs.outputs, (*outputs, *inputs.scratch[len(outputs) :]), strict=True):
            values[name] = with_tensor(values[name], tensor)
        chosen = self._configs.triton_config(config)
        named = {**values, **chosen.all_kwargs()}
        if chosen.pre_hook is not None:
            chosen.pre_hook(named)
        if self._pre_hook is not None:
            self._pre_hook(named)
        else:
            self._reset(values, inputs)
        error: Exception | None = None
        try:
            launched = {name: named[name] for name in values}  # a hook may have replaced some
            self._kernel.run(**launched, grid=grid, warmup=False, **chosen.all_kwargs())
        except Exception as raised:
            error = raised
            raise
        finally:
            if self._post_hook is not None:
                self._post_hook(named, exception=error)

    def _grid_of(self, config: Config, shape: KernelShape) -> Any:
        """Return the grid of the decorator, or of the launch that asked for a search."""
        if self._grid is not None:
            return self._grid
        if (grid := self._grids_of_launch(shape)[self._configs.listed.index(config)]) is None:
            raise UsageError(f"{self._name}: the grid of the launch raised for {config}")
        return grid

    def _grids_of_launch(self, shape: KernelShape) -> Sequence[Grid | None]:
        """Return the grids of the launch that asked for a search, by config."""
        call = self._maker.calls.get(shape)
        if call is None or not call.grids:
            raise UsageError(
                f"{self._name}: grid= is not given, so a search cannot launch it; give the one of its launches, such "
                "as grid=lambda meta: (triton.cdiv(meta['size'], meta['BLOCK']),)"
            )
        return call.grids

    def check_grid(self, shape: KernelShape, values: Mapping[str, Any], kept: Sequence[Config], *, first: bool) -> None:
        """Validate the grids of configs (``require_grid``), or that a launch that asked for a search left some.

        Raises:
            UsageError: there is none, or it is wrong.
        """
        if self._grid is None:
            self._grids_of_launch(shape)
        else:
            named = {**self._signature.defaults, **values}
            require_grid(self._name, self._grid, self._kernel, named, self._configs, kept, first=first)

    def _reset(self, values: Mapping[str, Any], inputs: Arguments) -> None:
        for name in self._zero:
            if (tensor := tensor_of(values[name])) is not None:
                tensor.zero_()
        for name in self._restored:
            tensor, kept = tensor_of(values[name]), tensor_of(inputs.values[name])
            if tensor is not None and kept is not None and tensor is not kept:
                tensor.copy_(kept)

    def warmup(self, config: Config, shape: KernelShape, *, every_output: bool = False) -> Sequence[Any]:
        chosen = self._configs.triton_config(config)
        made = self._declared(shape) if self._maker.is_declared else self._maker.make(shape, device="meta")
        named = {**made, **chosen.all_kwargs()}
        if chosen.pre_hook is not None:
            chosen.pre_hook(named)
        launched = {name: named[name] for name in made}
        return (self._kernel.run(**launched, grid=(1,), warmup=True, **chosen.all_kwargs()),)

    def bind(self, config: Config, shape: KernelShape) -> Callable[..., Any]:
        """Return the kernel with this config, to be called with its arguments, and ``grid=`` for another grid."""
        chosen = self._configs.triton_config(config)
        options = chosen.all_kwargs()

        def call(*arguments: Any, grid: Any = None, **named: Any) -> Any:
            given = {**dict(zip(self._signature.names, arguments, strict=False)), **named}
            keyed = {name: given[name] for name in shape.as_dict() if name in given}
            if (found := replace(shape, **keyed)) != shape:
                raise InputMismatchError(f"the arguments are of {found}; expected those of {shape}")
            if chosen.pre_hook is not None:
                chosen.pre_hook({**given, **options})
            try:
                return self._kernel.run(**given, grid=self._grid if grid is None else grid, warmup=False, **options)
            except Exception as error:
                if is_without_gpu(error):
                    raise without_gpu(self._name) from error
                raise

        return call


def is_without_gpu(error: Exception) -> bool:
    """Return True if Triton could not launch a kernel because no GPU is here."""
    return isinstance(error, RuntimeError) and str(error).startswith("0 active drivers")


def without_gpu(kernel: str) -> MissingDependencyError:
    """Make the error for such a launch."""
    return MissingDependencyError(
        f"{kernel}: no GPU is visible to launch on; `autotune doctor` says why, and with TRITON_INTERPRET=1 in the "
        "environment Triton runs kernels on the CPU"
    )
