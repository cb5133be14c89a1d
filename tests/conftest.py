"""For all tests."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import left_out
import pytest
import skips
from hypothesis import settings

# A test that is slow on a busy machine is not wrong. What runs for each change tries the same examples each time; who looks for more
# (make test-all) draws new ones.
settings.register_profile("any machine", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("explore" if os.environ.get("LMJ_EXPLORE") else "any machine")


def pytest_configure(config: pytest.Config) -> None:
    """A shell without job control has its background jobs ignore SIGINT, and what is ignored is inherited: the jobs under test too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    skips.register(config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without a mark for this run in a module there is nothing to import it for."""
    expression = config.getoption("markexpr")
    if not expression or collection_path.suffix != ".py":
        return None
    return left_out.left_out(collection_path.read_text(), expression) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What is imported is never garbage: the collector need not look through all of torch again and again.

    What tests make goes by itself, nearly all of it: to look for cycles after every 700 objects finds little.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """At the interpreter's end all is looked through: some libraries report what is left."""
    gc.unfreeze()
