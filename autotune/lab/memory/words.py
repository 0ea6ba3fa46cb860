"""The memory analysis as tables: matrices of scores, and predicted and measured peaks."""

from collections.abc import Sequence

from autotune import sheets
from autotune.lab.absent import absence_lines
from autotune.lab.memory.peaks import Peak, score_matrix
from autotune.shape import AttentionShape
from autotune.sheets import Sheet
from autotune.units import bytes_text


def score_sheet(shapes: Sequence[AttentionShape]) -> Sheet:
    """Return the scores of one head and of all."""
    matrices = [score_matrix(shape) for shape in shapes]
    rows = tuple((m.shape.seq_q, f"{m.of_head // 1024:,} KB", f"{m.total / 2**20:,.1f} MB") for m in matrices)
    shape = shapes[0]
    all_heads = f"all {shape.batch * shape.heads} heads" if shape.batch == 1 else f"batch {shape.batch} x {shape.heads}"
    columns = (sheets.number("S", ""), sheets.number("per head"), sheets.number(all_heads))
    return Sheet(f"The matrix of scores, {shape.dtype}", columns, rows, ("KB and MB here are 2^10 and 2^20 bytes",))


def peak_sheet(peaks: Sequence[Peak], how: str) -> Sheet:
    """Return predicted and measured peaks, with the reasons where nothing was measured."""
    rows, absent = [], {}
    for name in dict.fromkeys(peak.name for peak in peaks):
        own = [peak for peak in peaks if peak.name == name]
        if all(peak.measured is None for peak in own) and len({peak.reason for peak in own}) == 1:
            absent[name] = own[0].reason
            continue
        for peak in own:
            ratio = None if peak.measured is None else peak.measured / peak.predicted
            measured = f"not run: {peak.reason}" if peak.measured is None else bytes_text(peak.measured)
            rows.append((name, peak.shape.seq_q, peak.predicted, measured, ratio))
    columns = (
        *(sheets.text("implementation"), sheets.number("S", ""), sheets.size("predicted")),
        *(sheets.number("measured"), sheets.number("measured / predicted", ".3f")),
    )
    notes = (f"measured by {how}", *absence_lines({"": absent}))
    return Sheet("Peak memory beside q, k and v", columns, tuple(rows), notes)
