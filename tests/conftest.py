"""Settings that all tests share."""

from hypothesis import settings

# Fixed examples and no deadline: a test says the same on a busy machine and on every run.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
