"""Fixtures of the end-to-end tests."""

import pytest
from cluster_fixture import cluster, own_cluster
from undisturbed_fixture import undisturbed_of

__all__ = ["cluster", "own_cluster", "undisturbed_of"]


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """There is one cluster: with several workers, one of them has all tests that need it."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("cluster"))
