"""Trials for other programs: ``json``, ``csv`` and what kernels are given, as text."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, Final

from autotune.errors import UnknownNameError, UsageError, printable
from autotune.registry import get_implementation, implementations_of, operation_names
from autotune.table.exchange import require_one, to_document
from autotune.trial import Timing, Trial

FORMS: Final = ("csv", "json", "triton-config", "flex", "python")
# Triton takes these beside the dictionary of a config; all others, AMD's included, are entries of it.
LAUNCH_OPTIONS: Final = ("num_warps", "num_stages", "num_ctas", "maxnreg")
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")


def export(trials: Sequence[Trial], form: str) -> str:
    """Return winners of one implementation as text, in one of ``FORMS``.

    ``csv`` and ``json`` have the columns of the tables; ``started_at`` is in ISO 8601, and ``from_json`` reads all rows
    back. In ``csv`` what is no visible character is a question mark, and a text that a spreadsheet would compute stands
    behind a quote. ``triton-config`` is Python source that needs only triton: ``CONFIGS``, one ``triton.Config`` for
    each distinct config, below a comment for each winner that has it; parameters that do not apply are left out.
    ``python`` is a module without dependencies (``autotune.table.vendored``). ``flex`` is a JSON list of the winners of
    ``flex``, torch's FlexAttention: each has its ``shape``, ``device``, ``power_cap_watts`` and ``torch``, the medians
    ``median_us`` and ``default_us`` of one race, and the ``kernel_options`` to pass to torch's function.

    Raises:
        UnknownNameError: no such form.
        UsageError: the trials are of several implementations, there is none, one has no time, or the form is not
            theirs.
        TableError: a trial holds an impossible value.
    """
    if form not in FORMS:
        raise UnknownNameError(f"form={form!r} is unknown; allowed: {', '.join(FORMS)}")
    if form in ("csv", "json"):
        document = to_document(trials)
        if form == "json":
            return json.dumps(document, indent=2, allow_nan=False) + "\n"
        rows = [tuple(map(_cell, row.values())) for row in document["rows"]]
        text = io.StringIO(newline="")
        lines = [tuple(document["rows"][0]), *rows]
        csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows(lines)
        return text.getvalue()
    require_one(trials)
    if form == "triton-config":
        return _triton_source(trials)
    if form == "flex":
        return _flex_text(trials)
    from autotune.table.vendored import vendored_source  # which a look-up need not load

    return vendored_source(trials)


def _cell(value: Any) -> Any:
    """Return a value as a cell of CSV: of a text that a spreadsheet would compute or send, the same behind a quote."""
    if not isinstance(value, str):
        return value
    return f"'{printable(value)}" if value.startswith(FORMULA_STARTS) else printable(value)


def _triton_source(trials: Sequence[Trial]) -> str:
    owner = printable(f"{trials[0].operation}/{trials[0].implementation}")
    title = f"# Winners of {owner}, written by `autotune export`: shape; device; median; source."
    lines = [title, "import triton", "", "CONFIGS = ["]
    for config in dict.fromkeys(trial.config for trial in trials):
        lines += [f"    # {_comment(trial)}" for trial in trials if trial.config == config]
        given = {name: value for name, value in config.items() if value is not None}
        options = "".join(f", {name}={given.pop(name)!r}" for name in LAUNCH_OPTIONS if name in given)
        lines.append(f"    triton.Config({given!r}{options}),")
    return "\n".join([*lines, "]", ""])


def _flex_text(trials: Sequence[Trial]) -> str:
    own = get_implementation(trials[0].operation, trials[0].implementation)
    if (options_of := own.export_options) is None:
        every = (each for name in operation_names() for each in implementations_of(name))
        takers = [each for each in every if each.export_options is not None]
        titles = " or ".join(each.title for each in takers)
        expected = f"expected implementation {' or '.join(each.name for each in takers)}"
        raise UsageError(f"form='flex' is for {titles}, whose kernel takes them; got {own.title}; {expected}")
    winners = [
        {
            "shape": trial.shape.as_dict(),
            "device": trial.device.name,
            "power_cap_watts": trial.device.power_cap_watts,
            "torch": trial.toolchain.torch,
            "median_us": _timing(trial).median_us,
            "default_us": None if trial.default_timing is None else trial.default_timing.median_us,
            "kernel_options": options_of(trial.config),
        }
        for trial in trials
    ]
    return json.dumps(winners, indent=2) + "\n"


def _timing(trial: Trial) -> Timing:
    if trial.timing is None:
        raise UsageError(f"config={trial.config} has no time: only winners are exported as what kernels are given")
    return trial.timing


def _comment(trial: Trial) -> str:
    device = trial.device
    cap = "" if device.power_cap_watts is None else f" at {device.power_cap_watts} W"
    source = f"{trial.executor} race {trial.race_id} of {trial.started_at:%Y-%m-%d}, triton {trial.toolchain.triton}"
    median = f"{_timing(trial).median_us:.4g} us"
    return printable(f"{trial.shape}; {device.name}{cap}; {median}; {source}, source {trial.source_hash[:12]}")
