"""``autotune search --densify``: of the shapes of a request those that are served far from the best."""

from dataclasses import replace
from typing import Final

from autotune.cli.stored import require_place
from autotune.cli.studies import SearchRequest
from autotune.console.output import make_console
from autotune.executor.select import describe_executor
from autotune.table import Store, warn_damaged
from autotune.tuning import SparseShape, find_sparse
from autotune.units import count_text, percent_text

SECONDS: Final = 60.0  # of one search, at most


def choose_sparse(request: SearchRequest, above: float) -> SearchRequest:
    """Return the request of the most costly shapes, as many as its budget has a search for; print which these are."""
    require_place(request.tables)
    console, total = make_console(request.as_json), request.budget or SECONDS
    here = describe_executor(request.device, request.settings.policy, index=request.settings.index)
    device = here.device
    store = Store(request.root, on_damaged=warn_damaged)
    operations = dict.fromkeys(operation.name for operation, _ in request.shapes)
    rows = [row for name in operations for row in store.trials(name, device)]
    found = find_sparse(
        request.shapes, device, here.toolchain, rows, above=above, implementations=request.implementations
    )
    seconds = min(SECONDS, total)
    chosen = found[: int(total // seconds)]
    known = sum(each.regret is not None for each in found)
    console.print(
        f"sparse    {len(found)} of {count_text(len(dict.fromkeys(request.shapes)), 'shape')} on an {device.name}: "
        f"{known} above {percent_text(above)}, {len(found) - known} of which nothing is known"
    )
    if chosen:
        console.print(*map(_line, chosen), sep="\n")
    if left := len(found) - len(chosen):
        console.print(f"left      {count_text(left, 'shape')}: raise --budget, or run the same command again")
    console.print()
    return replace(request, shapes=[(each.operation, each.shape) for each in chosen], budget=seconds)


def _line(each: SparseShape) -> str:
    texts = []
    if each.expected is not None:
        texts.append(f"{percent_text(each.expected)} expected")
    if each.measured is not None:
        texts.append(f"{percent_text(each.measured)} measured at {each.measured_at}")
    return f"regret    {'; '.join(texts) or 'not known'} ({each.rung}): {each.operation.name}: {each.shape}"
