"""Functions of flash-attn's names as a kernel of Hugging Face's ``kernels``, in a local folder: no network is asked.

transformers loads it by ``attn_implementation=NAME`` and calls it in its own wrapper of flash attention, as continuous
batching and vision towers at speed need. ``kernels`` alone takes the folder, ``get_local_kernel(FOLDER)``, or the name,
where its variable ``LOCAL_KERNELS`` has ``f"{NAME}={FOLDER}"``.

Example:
    >>> from autotune.integrations.hub import NAME, register
    >>> register()
    >>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation=NAME, device_map="cuda")

Source: https://github.com/huggingface/kernels/blob/main/docs/source/kernel-requirements.md, a kernel's folder.
"""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from autotune.errors import MissingDependencyError

# transformers takes "flash" in a name as its wrapper's; a 2 or 3 behind it would choose a path that nothing here tests.
NAME: Final = "attention-autotune/flash-attention"
FOLDER: Final = Path(__file__).resolve().parent / "kernel"
VARIABLE: Final = "LOCAL_KERNELS"


def register() -> None:
    """Make ``attn_implementation=NAME`` known to transformers: add the folder to ``LOCAL_KERNELS`` of this process.

    Raises:
        MissingDependencyError: transformers 5 is not installed, or ``kernels`` is not in a version that it takes.
    """
    try:
        from transformers import __version__ as found
        from transformers.utils.import_utils import KERNELS_MAX_VERSION, KERNELS_MIN_VERSION, is_kernels_available
    except ImportError as error:
        raise MissingDependencyError(
            f"transformers 5 is needed, and not importable ({error}): pip install 'attention-autotune[transformers]'"
        ) from None
    if not is_kernels_available():
        wanted = f"kernels>={KERNELS_MIN_VERSION},<{KERNELS_MAX_VERSION}"
        raise MissingDependencyError(
            f"transformers {found} loads {NAME} by {wanted}, and {_installed()}: pip install '{wanted}', "
            "or take attn_implementation='autotune' of autotune.integrations.transformers, which needs no kernels"
        )
    others = [each for each in os.environ.get(VARIABLE, "").split(":") if each and not each.startswith(f"{NAME}=")]
    os.environ[VARIABLE] = ":".join([*others, f"{NAME}={FOLDER}"])


def _installed() -> str:
    try:
        return f"kernels {version('kernels')} is installed"
    except PackageNotFoundError:
        return "no kernels is installed"
