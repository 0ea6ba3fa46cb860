"""Settings of all tests."""

from hypothesis import settings

# No test measures time: a machine under load takes longer than any deadline once in ten thousand examples.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
