"""A confirmation as text, in one golden file, and as plain data."""

from pathlib import Path

from autotune.cli.confirmed import confirmation_data, confirmation_lines, why_uncompiled
from autotune.correctness import Verdict
from autotune.device import NVIDIA_H200
from autotune.search import Confirmation
from autotune.search_spaces.flash_attention import flex, triton
from autotune.trial import Outcome, Resources, Status
from tests import sample
from tests.golden import assert_golden

FITS = Resources(shared_bytes=98304, registers=168, spill_bytes=0)
COMPILED = Outcome(candidate=sample.candidate(), status=Status.OK, resources=FITS)
OTHER = sample.candidate(sample.config(num_warps=4))
REFUSED = Outcome(candidate=OTHER, status=Status.OUT_OF_RESOURCES, message="too large")
FOUND = Confirmation((COMPILED, REFUSED), Verdict(Status.OK, error=0.001, error_limit=0.004), "float16")
UNCHECKED = Confirmation((COMPILED,), None, "float16", "no answer within 300 s")
WRONG = Confirmation((COMPILED,), Verdict(Status.WRONG_RESULT, message="off by 3"), "float16")


def test_golden() -> None:
    lines = [
        *confirmation_lines(FOUND, triton.IMPLEMENTATION, NVIDIA_H200),
        *confirmation_lines(FOUND, triton.IMPLEMENTATION, NVIDIA_H200, of_several=True),
        *confirmation_lines(WRONG, triton.IMPLEMENTATION, NVIDIA_H200),
        *confirmation_lines(UNCHECKED, triton.IMPLEMENTATION, NVIDIA_H200),
        *confirmation_lines(None, flex.IMPLEMENTATION, NVIDIA_H200),
        why_uncompiled(triton.IMPLEMENTATION),
    ]
    assert_golden(Path(__file__).parent / "golden" / "confirmed.txt", "\n".join(lines))


def test_a_confirmation_holds_if_everything_in_it_does() -> None:
    data = confirmation_data(FOUND)
    assert data is not None
    assert (data["holds"], [each["status"] for each in data["compiled"]]) == (False, ["ok", "out_of_resources"])
    assert {each["implementation"] for each in data["compiled"]} == {"triton"}
    assert confirmation_data(None) is None


def test_nothing_holds_that_was_not_checked() -> None:
    data = confirmation_data(Confirmation((), None, unchecked="no folder for binaries"))
    assert data is not None
    assert (data["holds"], data["unchecked"]) == (None, "no folder for binaries")
