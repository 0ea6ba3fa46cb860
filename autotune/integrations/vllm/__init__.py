"""``--attention-backend CUSTOM`` of vLLM: a server's attention over its paged cache on our kernels.

vLLM finds the package by its entry point, so that nothing but the name of the backend is asked of a user:

    vllm serve MODEL --attention-backend CUSTOM

Example:
    >>> from autotune.integrations.vllm import register
    >>> register()  # what the entry point does
"""

import logging
from typing import Final

from autotune.errors import MissingDependencyError

NAME: Final = "CUSTOM"  # the member of vLLM's list of backends that is for those of others
BACKEND: Final = "autotune.integrations.vllm.backend.AutotuneBackend"

_logger = logging.getLogger(__name__)


def register() -> None:
    """Make ``--attention-backend CUSTOM`` of vLLM ours; one that another package registered stays.

    Raises:
        MissingDependencyError: vLLM is not installed, or has no such list of backends.
    """
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError as error:
        raise MissingDependencyError(f"vllm 0.33 is needed, and not importable ({error}): pip install vllm") from None
    custom = AttentionBackendEnum.CUSTOM
    if custom.is_overridden() and custom.get_path() != BACKEND:
        _logger.warning("--attention-backend %s stays %s: it was registered first", NAME, custom.get_path())
        return
    register_backend(custom, BACKEND)


def load_plugin() -> None:
    """Register, as vLLM's entry point: a vLLM of other versions serves without us, and says so."""
    try:
        register()
    except MissingDependencyError as error:
        _logger.warning("--attention-backend %s is not there: %s", NAME, error)
