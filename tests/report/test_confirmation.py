"""A confirmation in words and as data; and what cannot be confirmed without its GPU."""

from autotune.correctness import Verdict
from autotune.device import NVIDIA_H200
from autotune.report.confirmation import confirmation_data, confirmation_lines, why_uncompiled
from autotune.search import Confirmation
from autotune.search_spaces import flash_attention, flex_attention
from autotune.trial import Outcome, Resources, Status
from tests.report import sample

FITS = Resources(shared_bytes=98304, registers=168, spill_bytes=0)
COMPILED = Outcome(config=sample.FAST, status=Status.OK, resources=FITS)


def test_finalists_and_numbers_are_told() -> None:
    refused = Outcome(config=sample.config(num_warps=4), status=Status.OUT_OF_RESOURCES, message="too large")
    found = Confirmation((COMPILED, refused), Verdict(Status.OK, error=0.001, error_limit=0.004), "float16")
    error = "(largest error 0.001, allowed 0.004)"
    fits = "ok for sm_90 here: 168 registers, 0 bytes spilled, 98304 of 232448 bytes of shared memory"
    assert confirmation_lines(found, flash_attention.OPERATION, NVIDIA_H200) == [
        f"compiled  {sample.FAST}: {fits}",
        f"compiled  {refused.config}: out_of_resources for sm_90: too large",
        f"checked   numbers ok in Triton's interpreter, float16, on reduced lengths {error}",
    ]
    data = confirmation_data(found)
    assert data is not None
    assert (data["holds"], [each["status"] for each in data["compiled"]]) == (False, ["ok", "out_of_resources"])


def test_what_compiles_where_it_runs_is_not_said_to_be_confirmed() -> None:
    (line,) = confirmation_lines(None, flex_attention.OPERATION, NVIDIA_H200)
    assert line == (
        "checked   nothing here: torch compiles flex_attention only on the device that runs it; "
        "its numbers were checked where it was timed"
    )
    assert confirmation_data(None) is None
    assert why_uncompiled(flash_attention.OPERATION).startswith("its kernel compiles flash_attention only on")
