"""Registers the operation and its implementation when it is imported, as ``--import`` does."""

from autotune import registry
from tests.outside.row_scale import NAME, REFERENCES
from tests.outside.row_scale.space import IMPLEMENTATION

registry.register(NAME, REFERENCES["operation"])
registry.register_implementation(NAME, IMPLEMENTATION.name, REFERENCES["implementation"])
