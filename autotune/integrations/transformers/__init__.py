"""``attn_implementation="autotune"`` of Hugging Face's transformers: forward passes of their models on our kernels.

Example:
    >>> from autotune.integrations.transformers import register
    >>> register()
    >>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="autotune", device_map="cuda")
"""

from typing import Final

from autotune.errors import MissingDependencyError

NAME: Final = "autotune"  # has no "flash" in it: transformers would look for a package of flash attention


def register() -> None:
    """Make ``attn_implementation="autotune"`` known to transformers: its attention function and its mask function.

    Raises:
        MissingDependencyError: transformers 5 is not installed.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise MissingDependencyError(
            f"transformers 5 is needed, and not importable ({error}): pip install 'attention-autotune[transformers]'"
        ) from None
    from autotune.integrations.transformers.attention_function import attention_function
    from autotune.integrations.transformers.mask_function import mask_function

    AttentionInterface.register(NAME, attention_function)
    AttentionMaskInterface.register(NAME, mask_function)
