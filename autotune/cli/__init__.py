"""The command line: arguments, one library call, output."""

__all__ = ["main"]


def main() -> None:
    """Run the command line; the console script and ``python -m autotune`` both call it."""
    from autotune.console import interrupts

    interrupts.leave_at_once()  # before the imports below, which take a while
    from autotune.console import streams

    streams.outlive_readers()
    try:
        _run()
    finally:
        interrupts.leave_at_once()  # nor may an exception disturb Python's own end


def _run() -> None:
    """Run the command; a package that cannot be imported is named, with what mends it."""
    import sys
    import threading

    from autotune.cli import packages
    from autotune.console.streams import print_traceback

    sys.excepthook = print_traceback
    threading.excepthook = lambda ended: print_traceback(*filter(None, ended))
    try:
        if sys.argv[1:2] == ["doctor"] and (found := packages.examine_required()):
            packages.report(found)
            sys.exit(1)
        from autotune.cli.app import main as run

        run()
    except Exception as error:
        if (broken := packages.broken_package(error)) is None:
            raise
        print(f"autotune: {broken}", file=sys.stderr)
        sys.exit(1)
