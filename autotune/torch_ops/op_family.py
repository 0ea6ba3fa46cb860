"""The ops behind one function of attention: one for each form of its result."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from autotune.torch_ops.tensor_op import Cast, Fold, TensorOp, check_traced

Form = Callable[[Callable[..., Any]], Callable[..., Any]]  # turns a function into what one op does


class OpFamily:
    """The ops ``NAME``, ``NAME_with_lse``, ``NAME_out`` and ``NAME_out_with_lse``; called as the function is.

    The last two write their first argument, and return nothing or the log-sum-exp.

    Args:
        name: that of the function.
        tensors: the names of its tensors.
        options: the types of its other parameters, but for ``return_lse`` and ``out``.
        compute: the function over real tensors, which takes tensors and options by position, in this order.
        fake: the function over fake ones, which takes all by name.
        cast, fold: rules for autocast and vmap, see ``TensorOp``.
    """

    def __init__(
        self,
        name: str,
        tensors: Sequence[str],
        options: Mapping[str, str],
        *,
        compute: Callable[..., Any],
        fake: Callable[..., Any],
        cast: Cast,
        fold: Fold | None = None,
    ) -> None:
        self._tensors = tuple(tensors)
        self._options = tuple(options)
        inputs = dict.fromkeys(tensors, "Tensor") | dict(options)
        with_buffer = {"out": "Tensor(a!)"} | inputs

        def make_results(*values: Any, **form: Any) -> Any:
            return fake(**dict(zip(inputs, values, strict=True)), **form)

        def define(suffix: str, parameters: Mapping[str, str], returns: str, form: Form, fold: Fold | None) -> TensorOp:
            rules = {"compute": form(compute), "fake": form(make_results)}
            return TensorOp(name + suffix, parameters, returns, **rules, cast=cast, fold=fold)

        self._plain = define("", inputs, "Tensor", _plain, fold)
        self._with_lse = define("_with_lse", inputs, "(Tensor, Tensor)", _with_lse, fold)
        # A buffer has the sizes of one problem, and is not mapped.
        self._out = define("_out", with_buffer, "()", _into, None)
        self._out_with_lse = define("_out_with_lse", with_buffer, "Tensor", _into_with_lse, None)

    def __call__(
        self, *tensors: torch.Tensor, return_lse: bool, out: torch.Tensor | None, **options: Any
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Call the op for this form of result, as part of what is traced."""
        arguments = dict(zip(self._tensors, tensors, strict=True)) | options
        buffer = {} if out is None else {"out": out}
        check_traced(self._tensors, buffer | arguments)
        values = (*tensors, *[options[name] for name in self._options])
        if out is None:
            return (self._with_lse if return_lse else self._plain)(*values)  # type: ignore[no-any-return]
        if return_lse:
            return out, self._out_with_lse(out, *values)
        self._out(out, *values)
        return out


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return partial(function, return_lse=False, out=None)


def _with_lse(function: Callable[..., Any]) -> Callable[..., Any]:
    return partial(function, return_lse=True, out=None)


def _into(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(out: torch.Tensor, *values: Any) -> None:
        function(*values, return_lse=False, out=out)

    return call


def _into_with_lse(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda out, *values: function(*values, return_lse=True, out=out)[1]
