"""The command line: arguments, one library call, output."""

__all__ = ["main"]


def main() -> None:
    """Run the command line; what both the console script and ``python -m autotune`` call."""
    from autotune.cli import interrupts

    interrupts.leave_at_once()  # before the imports below, which take half a second
    from autotune.cli import streams
    from autotune.cli.app import main as run

    streams.outlive_readers()
    try:
        run()
    finally:
        interrupts.leave_at_once()  # Python's own end is no place for an exception either
