"""Rounding of sizes."""


def power_of_two(value: int) -> int:
    """Return the least power of two that is not smaller; 1 for 0.

    Example:
        >>> power_of_two(24)
        32
    """
    return 1 << max(0, value - 1).bit_length()
