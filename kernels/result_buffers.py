"""Buffers for the results of a call that is made again: as its first call made them, or the caller's."""

from collections.abc import Mapping, Sequence

import torch

from autotune.kernels.tensors import check_apart, range_bytes


class ResultBuffers:
    """Room for the output and the log-sum-exp of calls of one signature, of the queries' dtype and device."""

    def __init__(
        self,
        like: torch.Tensor,
        inputs: Mapping[str, torch.Tensor | None],
        found: torch.Tensor,
        lse: torch.Tensor | None,
        *,
        is_made: bool,
    ) -> None:
        """Take the queries, the inputs and the results of the first call.

        ``is_made``: its output was not a buffer of the caller's.
        """
        self._sizes = found.shape
        self._lse_sizes = None if lse is None else lse.shape
        self._is_like = is_made and (like.shape, like.stride()) == (found.shape, found.stride())
        self._names = tuple(inputs)
        self._bytes = [0 if each is None else range_bytes(each) for each in (*inputs.values(), found)]

    def take(
        self,
        like: torch.Tensor,
        inputs: Sequence[torch.Tensor | None],
        addresses: Sequence[int | None],
        out: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the output, ``out`` where it is given, and the log-sum-exp or None; uninitialized.

        ``addresses`` are those of the inputs, and of ``out`` where it is given.

        Raises:
            InputMismatchError: ``out`` shares memory with an input.
        """
        if out is None:
            # The former takes the least time, and keeps strides.
            out = torch.empty_like(like) if self._is_like else like.new_empty(self._sizes)
        else:
            self._check_apart(inputs, addresses, out)
            torch.autograd.graph.increment_version(out)  # written behind torch's back
        return out, None if self._lse_sizes is None else like.new_empty(self._lse_sizes, dtype=torch.float32)

    def _check_apart(
        self, inputs: Sequence[torch.Tensor | None], addresses: Sequence[int | None], out: torch.Tensor
    ) -> None:
        """Raise as ``check_apart`` does; it is asked only where ranges of addresses meet."""
        *begins, start = addresses
        assert start is not None
        end = start + self._bytes[-1]
        for begin, size in zip(begins, self._bytes[:-1], strict=True):
            if begin is not None and begin < end and start < begin + size:
                pairs = zip(self._names, inputs, strict=True)
                return check_apart(out, {name: each for name, each in pairs if each is not None})
        return None
