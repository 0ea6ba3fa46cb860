"""Without diffusers nothing here is a test; ``.[dev]`` has it."""

from importlib.util import find_spec
from typing import Final

collect_ignore_glob: Final = [] if find_spec("diffusers") else ["*"]
