"""``tuned``: reads what a user writes above a kernel, and refuses what it cannot use."""

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from autotune.decorated.agreement import check_configs, check_given, check_reference
from autotune.decorated.call_arguments import Inputs
from autotune.decorated.configs import make_configs
from autotune.decorated.kernel import MODES, DecoratedKernel, Mode
from autotune.decorated.key_shapes import check_key
from autotune.decorated.pruned import Pruning
from autotune.decorated.signature import Signature, read_signature
from autotune.errors import UsageError, suggestion
from autotune.operation import why_no_name
from autotune.references import module_name

# Of Triton's decorator, with the reason why this one has no use for it.
REFUSED: Final = {
    "do_bench": "times are taken by the engine, by one method that the rows name (docs/measuring.md)",
}
ACCEPTED: Final = {
    "warmup": "the engine warms up until two samples agree",
    "rep": "the engine repeats until the intervals part or agree",
    "use_cuda_graph": "the engine replays CUDA graphs by default; `search --policy eager` does not",
    "cache_results": "every result is kept in the tables",
}


def tuned(
    configs: Sequence[Any] | None = None,
    key: Sequence[str] | Mapping[str, type] = (),
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    *,
    parameters: Mapping[str, Sequence[Any]] | None = None,
    mode: Mode = "table",
    reference: Callable[..., Any] | None = None,
    inputs: Inputs | None = None,
    grid: Any = None,
    outputs: Sequence[str] | None = None,
    check_shapes: Callable[[Any], Sequence[Any]] | None = None,
    cost: Callable[[Any], Any] | None = None,
    name: str | None = None,
    budget: float = 60.0,
    **others: Any,
) -> Callable[[Any], DecoratedKernel]:
    """Tune a kernel of your own: a drop-in for ``triton.autotune`` above ``@triton.jit``.

    Launches read the tables and never measure. Without a row of the very arguments, the ladder of ``get_kernel`` is
    climbed, and at its end stands the first config. ``autotune search --kernel my_package.kernels:rmsnorm --shape ...``
    fills the tables; it needs ``inputs`` and ``grid``, from which it makes arguments and launches. With
    ``mode="first_call"`` a launch fills them, from itself.

    Args:
        configs: ``triton.Config`` objects; the first one is the default.
        key: names of the kernel's parameters that a row is for, beside the dtypes of the tensors; a mapping gives the
            types, ``int`` or ``str``, of which ``str`` also holds floats, None and dtypes. ``tl.constexpr`` and text
            must agree for a neighbour's config to be served; others are sizes.
        prune_configs_by: as in Triton; its functions are given all arguments by name, tensors on the device ``meta``.
        reset_to_zero: tensors that are set to zero before each launch of a search.
        restore_value: tensors that get their value back before each launch of a search.
        pre_hook: called with the arguments before each launch of a search, in place of these two.
        post_hook: called with the arguments and ``exception=`` after each launch of a search.
        parameters: values of each parameter, in place of ``configs``: ``{"BLOCK": [64, 128], "num_warps": [4, 8]}``.
        mode: ``"table"``, or ``"first_call"`` to search at the first launch of each key that has no row: seconds to a
            minute, in which that launch waits. It needs neither ``inputs`` nor ``grid``: the search takes the launch's
            grid, plain values, and sizes and strides of tensors; those of whole numbers hold what they held, others are
            drawn from a normal distribution.
        reference: computes the outputs from torch alone. It takes arguments by the kernel's names, those that it has
            parameters for, and returns the outputs in their order. Without one, configs are compared with the first.
        inputs: sizes of the tensors in integers and names of the key, a dtype at the end where it is not the shape's,
            and values of the other parameters: ``{"x_ptr": ("rows", "width"), "mean_ptr": ("rows", "float32"), "eps":
            1e-6}``; ``("x_ptr", 0)`` is a stride, and ``stride_xm, stride_xn, ...`` in the order of the tensors need
            no entry. Or a function of the shape that returns all arguments by name, made on torch's default device.
        grid: as in ``kernel[grid](...)``.
        outputs: the tensors that the kernel writes; found in its source by default.
        check_shapes: returns the shapes that a config is checked on before it is timed, in place of the shape itself
            with its sizes cut, and with odd sizes if the kernel masks what it loads or stores.
        cost: FLOPs of a shape, FLOPs and bytes, or a ``Cost``; each tensor is moved once where no bytes are given.
        name: of the operation, as tables and ``--operation`` call it; ``module.function`` by default, of the module
            that tunes.
        budget: seconds of a search by ``mode="first_call"``.
        others: ``warmup``, ``rep``, ``use_cuda_graph`` and ``cache_results`` of Triton's decorator change nothing here
            and are accepted with a warning that says why; ``do_bench`` is refused.

    Raises:
        UsageError: an argument is wrong; the message names it, its value and what is allowed.

    Example:
        >>> @autotune.tuned(
        ...     configs=[triton.Config({"BLOCK": block}) for block in (512, 1024)],
        ...     key=["size"],
        ...     inputs={"x_ptr": ("size",), "out_ptr": ("size",)},
        ...     grid=lambda meta: (triton.cdiv(meta["size"], meta["BLOCK"]),),
        ... )
        ... @triton.jit
        ... def double(x_ptr, out_ptr, size, BLOCK: tl.constexpr): ...
        >>> double[lambda meta: (triton.cdiv(size, meta["BLOCK"]),)](x, out, size)
    """
    _check_others(others)
    if mode not in MODES:
        raise UsageError(f"mode={mode!r} is not allowed; expected {' or '.join(map(repr, MODES))}")
    if not isinstance(budget, int | float) or budget <= 0:
        raise UsageError(f"budget={budget!r} is not allowed; expected seconds, more than 0")
    if name is not None and (reason := why_no_name(name)) is not None:
        raise UsageError(reason.replace("operation=", "name=", 1))
    if callable(configs):
        raise UsageError("tuned is called with its arguments: @autotune.tuned(configs=[...], key=[...])")
    _check_functions(reference=reference, pre_hook=pre_hook, post_hook=post_hook, check_shapes=check_shapes, cost=cost)
    chosen = make_configs(configs, parameters)

    def decorate(kernel: Any) -> DecoratedKernel:
        signature = read_signature(kernel)
        named = {"key": key, "reset_to_zero": reset_to_zero, "restore_value": restore_value, "outputs": outputs}
        for argument, names in named.items():
            _check_names(argument, names or (), signature)
        zero, restored = tuple(reset_to_zero or ()), tuple(restore_value or ())
        check_key(tuple(key))
        check_configs("parameters" if configs is None else "configs", chosen.given, signature)
        check_given(tuple(key), chosen.triton, chosen.given, signature)
        given = chosen.given | signature.heuristics
        caller = sys._getframe(1)
        module = str(caller.f_globals.get("__name__", "__main__"))
        own = module if caller.f_code.co_name == "<module>" else signature.function.__module__
        check_reference(reference, [each for each in signature.names if each not in given])
        return DecoratedKernel(
            kernel,
            signature,
            chosen,
            _read_key(key, signature),
            Pruning(prune_configs_by, signature.names),
            mode=mode,
            budget=float(budget),
            name=name or f"{module_name(own)}.{signature.function.__name__}",
            module=module,
            inputs=inputs,
            grid=grid,
            cost=cost,
            launching={"reset_to_zero": zero, "restore_value": restored, "pre_hook": pre_hook, "post_hook": post_hook},
            defining={
                "outputs": outputs,
                "zero": zero,
                "restored": restored,
                "reference": reference,
                "check_shapes": check_shapes,
            },
        )

    return decorate


def _check_others(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name not in ACCEPTED and name not in REFUSED:
            taken = [
                each for each, kind in inspect.signature(tuned).parameters.items() if kind.kind != kind.VAR_KEYWORD
            ]
            raise UsageError(f"{name} is no argument of tuned{suggestion(name, taken)}; expected {', '.join(taken)}")
        if name in REFUSED and value is not None:
            raise UsageError(f"{name}={value!r} is not allowed: {REFUSED[name]}; leave it out")
        if value:
            warnings.warn(f"{name}={value!r} changes nothing under tuned: {ACCEPTED[name]}", stacklevel=3)


def _check_functions(**functions: Any) -> None:
    for name, given in functions.items():
        if given is not None and not callable(given):
            raise UsageError(f"{name}={given!r} is not allowed; expected a function, or None")


def _check_names(argument: str, names: Any, signature: Signature) -> None:
    if isinstance(names, str) or not all(isinstance(each, str) for each in names):
        raise UsageError(f"{argument}={names!r} is not allowed; expected names of parameters")
    for each in names:
        if each not in signature.names:
            allowed = ", ".join(signature.names)
            kernel = f"{signature.function.__name__}{suggestion(each, signature.names)}"
            raise UsageError(f"{argument} has {each!r}, no parameter of {kernel}: {allowed}")


def _read_key(key: Sequence[str] | Mapping[str, type], signature: Signature) -> dict[str, type]:
    if not isinstance(key, Mapping):
        return {each: signature.field_type(each) for each in key}
    for name, kind in key.items():
        if kind not in (int, str, bool):
            raise UsageError(f"key[{name!r}]={kind!r} is not allowed; expected int or str")
    return {name: int if kind is bool else kind for name, kind in key.items()}
