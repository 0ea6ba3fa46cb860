"""``autotune analyze``: the analyses of the lab, each imported when it is run."""

from typing import Final

from autotune.console.command import Group, Reference

LAB: Final = "autotune.lab"

analyze: Final = Group(
    name="analyze",
    help="Derive, measure and count why kernels are as fast as they are.",
    references={
        "roofline": Reference(
            f"{LAB}.roofline.command:roofline", "Derive FLOPs and bytes, and place every kernel under the ceilings."
        ),
        "memory": Reference(
            f"{LAB}.memory.command:memory", "Predict and measure attention's memory beside its inputs."
        ),
        "stability": Reference(
            f"{LAB}.stability.command:stability", "Count NaN and infinities over inputs that strain a softmax."
        ),
        "trace": Reference(f"{LAB}.trace.command:trace", "Profile every implementation step by step."),
        "goldilocks": Reference(
            f"{LAB}.goldilocks.command:goldilocks", "Search implementation, precision and parameters together."
        ),
    },
)
