"""The command line: arguments, one library call, output."""

__all__ = ["main"]


def main() -> None:
    """Run the command line; the console script and ``python -m autotune`` both call it."""
    from autotune.console import interrupts

    interrupts.leave_at_once()  # before the imports below, which take a while
    from autotune.cli.app import main as run
    from autotune.console import streams

    streams.outlive_readers()
    try:
        run()
    finally:
        interrupts.leave_at_once()  # nor may an exception disturb Python's own end
