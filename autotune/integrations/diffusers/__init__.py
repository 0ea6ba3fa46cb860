"""``set_attention_backend("autotune")`` of Hugging Face's diffusers: attention of their transformers on our kernels.

Example:
    >>> from autotune.integrations.diffusers import register
    >>> register()
    >>> pipeline.transformer.set_attention_backend("autotune")
"""

from typing import Final

from autotune.errors import MissingDependencyError

NAME: Final = "autotune"


def register() -> None:
    """Make the backend ``"autotune"`` known to diffusers; again is without effect.

    Raises:
        MissingDependencyError: diffusers is not installed, or its list of backends is another than that of 0.42.
    """
    try:
        from autotune.integrations.diffusers.backend_names import add_backend
    except ImportError as error:
        raise MissingDependencyError(
            f"diffusers 0.42 is needed, and not importable ({error}): pip install 'attention-autotune[diffusers]'"
        ) from None
    from autotune.integrations.diffusers.dispatched import dispatched_attention

    add_backend(NAME, dispatched_attention)
