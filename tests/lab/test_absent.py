"""Lines about implementations that did not run."""

from autotune.lab.absent import absence_lines


def test_an_absent_implementation_is_named_once() -> None:
    """For all places together, and not again where the reason begins with the name."""
    cudnn = {"sdpa cudnn": "sdpa cudnn needs a GPU", "cudnn": "cuDNN needs an NVIDIA GPU"}
    found = absence_lines({"over a": {**cudnn, "cudnn best plan": "cuDNN needs more"}, "over b": cudnn})
    assert found == [
        "not run: sdpa cudnn: needs a GPU",
        "not run: cudnn: needs an NVIDIA GPU",
        "not run: cudnn best plan over a: cuDNN needs more",
    ]
