"""The time of an implementation, step by step."""
