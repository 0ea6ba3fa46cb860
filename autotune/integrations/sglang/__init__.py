"""``--attention-backend autotune`` of SGLang: a server's attention over its token pool on our kernels.

SGLang finds the package by its entry point, so that nothing but the name of the backend is asked of a user:

    python -m sglang.launch_server --model-path MODEL --attention-backend autotune --page-size 16

Example:
    >>> from autotune.integrations.sglang import register
    >>> register()  # what the entry point does
"""

from typing import Any, Final

from autotune.errors import MissingDependencyError

NAME: Final = "autotune"


def register() -> None:
    """Make ``--attention-backend autotune`` known to SGLang; again is without effect.

    Raises:
        MissingDependencyError: SGLang is not installed, or has no such lists of backends.
    """
    try:
        from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices
        from sglang.srt.layers.attention.attention_registry import register_attention_backend
    except ImportError as error:
        raise MissingDependencyError(
            f"sglang 0.5.23 is needed, and not importable ({error}): pip install sglang"
        ) from None
    register_attention_backend(NAME)(_make_backend)
    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])


def _make_backend(model_runner: Any) -> Any:
    from autotune.integrations.sglang.radix_backend import RadixBackend

    return RadixBackend(model_runner)
