"""Compare samplers on the recorded sweeps: ``python -m benchmarks.search_efficiency``; ``docs/search-efficiency.md``.

Needs no GPU. Kernel Tuner's strategies run in an interpreter of their own and are left out where there is none.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

from autotune.search import DEFAULT_SAMPLER
from benchmarks.search_efficiency import kernel_tuner, report
from benchmarks.search_efficiency.samplers import OURS, PLAIN, Run
from benchmarks.search_efficiency.summary import summarise
from benchmarks.search_efficiency.tasks import make_tasks, recordings, run_all

KERNEL_TUNER = tuple(kernel_tuner.PREFIX + strategy for strategy in kernel_tuner.STRATEGIES)
ALL = (*OURS, *PLAIN, *KERNEL_TUNER)


def main() -> None:
    arguments = parse(sys.argv[1:])
    names, python = chosen(ALL, arguments.samplers), arguments.kernel_tuner_python
    if any(name in KERNEL_TUNER for name in names) and not kernel_tuner.is_usable(python):
        print(f"- Kernel Tuner is left out: {python} is no interpreter that has it (--kernel-tuner-python)")
        names = [name for name in names if name not in KERNEL_TUNER]
    seeds = dict.fromkeys(names, arguments.seeds) | {
        name: count for pattern, count in arguments.seeds_for for name in chosen(names, [pattern])
    }
    sweeps = chosen(recordings(), arguments.sweeps)
    runs, failed = run_all(make_tasks(seeds, sweeps, python), arguments.jobs, arguments.keep)
    print("\n".join([*(f"- {name} is left out: {reason}" for name, reason in failed.items()), *cut_short(runs)]))

    used = [recordings()[sweep] for sweep in sweeps]
    training = summarise("training", used, runs, arguments.default)
    held_out = summarise("held-out", used, runs, arguments.default)
    print(report.tables("training", training), report.tables("held-out", held_out), sep="\n")
    print(report.verdict(training, held_out, arguments.default))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(summary) for summary in (*training, *held_out)], indent=2))
    if arguments.plot:
        report.plot(arguments.plot, used, runs)


def cut_short(runs: Sequence[Run]) -> list[str]:
    """Return a line for each sampler some of whose runs ended by an error: their count, and the first reason."""
    lines = []
    for name in dict.fromkeys(run.sampler for run in runs if run.stopped):
        mine = [run for run in runs if run.sampler == name]
        reasons = [run.stopped for run in mine if run.stopped]
        empty = sum(not run.trace for run in mine)
        count = f"{len(reasons)} of {len(mine)} runs ended by an error, {empty} with nothing evaluated"
        lines.append(f"- {name}: {count}: {reasons[0]}")
    return lines


def chosen(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that a shell pattern fits, in their order, of no pattern all; exit if a pattern fits none."""
    known = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise SystemExit(f"{pattern!r} fits none of: {', '.join(known)}")
    return [name for name in known if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]


def parse(words: Sequence[str]) -> argparse.Namespace:
    def seeds_for(text: str) -> tuple[str, int]:
        pattern, _, count = text.rpartition("=")
        return pattern, int(count)

    def made_folder(text: str) -> Path:
        folder = Path(text)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search_efficiency", description=__doc__, epilog=f"Samplers: {', '.join(ALL)}."
    )
    parser.add_argument("--seeds", type=int, default=50, help="runs of each sampler on each sweep")
    parser.add_argument(
        "--seeds-for", type=seeds_for, action="append", default=[], metavar="PATTERN=N", help="of these samplers"
    )
    parser.add_argument("--samplers", nargs="+", default=[], metavar="PATTERN", help="only these")
    parser.add_argument("--sweeps", nargs="+", default=[], metavar="PATTERN", help="only these; the halves stay")
    parser.add_argument("--default", default=DEFAULT_SAMPLER, help="the sampler that the targets are for")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--kernel-tuner-python", type=Path, default=Path("/tmp/ktenv/bin/python"))
    parser.add_argument("--keep", type=made_folder, help="folder of runs, to stop and resume; empty it if code changed")
    parser.add_argument("--json", type=Path, help="write the summaries to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw regret over the fraction evaluated")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
