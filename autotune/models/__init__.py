"""Models: the attention that one computes, the shapes of its calls, a list of named ones, and Hugging Face configs."""

from autotune.models.config_file import load_config
from autotune.models.model import ModelShape
from autotune.models.named import MODELS, find_model, get_model

__all__ = ["MODELS", "ModelShape", "find_model", "get_model", "load_config"]
