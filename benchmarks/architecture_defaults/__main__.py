"""Choose defaults where nothing is recorded: ``python -m benchmarks.architecture_defaults``; no GPU, an hour and less.

Of sm_80, sm_86 with sm_89, sm_120 and gfx942, each Triton implementation, 16 bits and float32, and heads of 64, 128 and
256, the candidates of ``classes.py`` are compiled and ranked by ``rule.py``. Printed are the choice with what its
binaries take, beside what those of the space's default take; it exits with 1 if a space has another default than the
rule. Before that, the rule chooses on the sweeps of sm_90, where times say what the choice costs (``--sweeps``: this
alone, in seconds). A second run finds its binaries in Triton's cache.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from autotune.registry import get_implementation, operation_names
from autotune.space import Config
from autotune.table import shipped_sweeps
from benchmarks.architecture_defaults.classes import (
    DTYPES,
    FAMILIES,
    TILES_OF_16_BITS,
    ProblemClass,
    classes,
)
from benchmarks.architecture_defaults.compiling import Compiler
from benchmarks.architecture_defaults.rule import Ranked, RuleCost, cost
from benchmarks.recorded_shapes import read_recordings


def costs_on_sweeps(loads: Sequence[str]) -> list[RuleCost]:
    """Return what the rule loses on each sweep of sm_90, choosing among the sources' tiles with these loads."""
    implementation = get_implementation("flash_attention", "triton")
    found = []
    for sweep in shipped_sweeps("flash_attention", implementation="triton"):
        trials = sweep.trials()
        for recording in read_recordings(implementation, [trials]):
            configs = [each for each in recording.ratios if _tile(each) in TILES_OF_16_BITS and each["loads"] in loads]
            found.append(cost(recording, trials, configs))
    return found


def _tile(config: Config) -> tuple[int, int, int]:
    rows, keys, warps = (config.integer(name) for name in ("BLOCK_Q", "BLOCK_K", "num_warps"))
    return rows, keys, warps


def print_costs() -> None:
    for title, loads in (("all loads", ("descriptor", "pointer")), ("pointers alone", ("pointer",))):
        found = costs_on_sweeps(loads)
        print(f"the rule on {len(found)} sweeps of sm_90, {title}")
        for row in found:
            print(f"  {row.of_all:.3f}x the best, {row.of_its_loads:.3f}x with such loads: {row.config}, {row.shape}")
        for name, ratios in (
            ("the best", [row.of_all for row in found]),
            ("such", [row.of_its_loads for row in found]),
        ):
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"  over {name}: {mean:.3f}x in the geometric mean, {max(ratios):.3f}x at worst")


def choose(compilers: Sequence[Compiler], problem: ProblemClass) -> tuple[list[list[Ranked]], Config]:
    """Return the ranking on each architecture of a family, and the config whose lesser merit there is the greatest."""
    rankings = [compiler.ranked(problem) for compiler in compilers]
    merits = [{each.config: each.merit for each in ranking} for ranking in rankings]
    shared = [each.config for each in rankings[0] if all(each.config in known for known in merits)]
    return rankings, max(shared, key=lambda config: min(known[config] for known in merits))


def text_of(ranked: Ranked) -> str:
    """Describe a config and what its binary takes."""
    values = {name: value for name, value in ranked.config.items() if value is not None}
    config = " ".join(f"{name}={value}" for name, value in values.items())
    taken = ranked.resources
    return (
        f"{config}: {taken.registers} registers, {taken.spill_bytes} bytes spilled, {taken.shared_bytes} bytes of "
        f"shared memory, {ranked.blocks} blocks and {ranked.warps} warps an SM"
    )


def compare(families: Sequence[Sequence[str]], problems: Sequence[ProblemClass], *, jobs: int, count: int) -> int:
    """Print the choice of each class beside the space's default; returns in how many of them they differ."""
    differ = 0
    for family in families:
        with ExitStack() as opened:
            compilers = [opened.enter_context(Compiler(arch, jobs=jobs)) for arch in family]
            for problem in problems:
                rankings, chosen = choose(compilers, problem)
                default = problem.implementation.space.default(problem.shape, compilers[0].device)
                differ += chosen != default
                print(f"{' and '.join(family)}: {problem}", flush=True)
                for compiler, ranking in zip(compilers, rankings, strict=True):
                    for place, each in enumerate(ranking):
                        words = [word for word, of in (("chosen", chosen), ("default", default)) if each.config == of]
                        if words or place < count:
                            name = f"{compiler.device.arch} {place + 1}. {' and '.join(words)}"
                            print(f"  {name:28} {text_of(each)}", flush=True)
    return differ


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.architecture_defaults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sweeps", action="store_true", help="only say what the rule costs where times are recorded")
    known = [arch for family in FAMILIES for arch in family]
    parser.add_argument("--arch", action="append", choices=known, help="only its family; may be repeated")
    parser.add_argument("--operation", choices=operation_names(), help="only its implementation")
    parser.add_argument("--dtype", choices=DTYPES, help="only this one")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at once")
    parser.add_argument("--count", type=int, default=1, help="how many of the best to print")
    given = parser.parse_args(arguments)
    print_costs()
    if given.sweeps:
        return
    families = [family for family in FAMILIES if not given.arch or set(family) & set(given.arch)]
    problems = [
        each
        for each in classes()
        if given.operation in (None, each.implementation.operation) and given.dtype in (None, each.dtype)
    ]
    if differ := compare(families, problems, jobs=given.jobs, count=given.count):
        sys.exit(f"benchmarks.architecture_defaults: of {differ} classes the space's default is not the rule's choice")


if __name__ == "__main__":
    main()
