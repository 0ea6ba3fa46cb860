"""``autotune`` as on a device that nobody has tuned for: ``python -m benchmarks.live.untuned ARGUMENTS``."""

from unittest.mock import patch

from autotune.cli import main
from autotune.table import served

if __name__ == "__main__":
    with patch.object(served, "shipped_winners", return_value=[]):
        main()
