"""For all tests."""

from hypothesis import settings

# A test that is slow on a busy machine is not wrong.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
