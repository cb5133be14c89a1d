"""Fixtures of the end-to-end tests."""

import pytest
from cluster_fixture import cluster, own_cluster
from undisturbed_fixture import undisturbed_of

__all__ = ["cluster", "own_cluster", "undisturbed_of"]


def pytest_itemcollected(item: pytest.Item) -> None:
    """There is one cluster, so the tests that need it run one after the other; those that do not may run beside them (``make test-e2e``)."""
    if "cluster" in getattr(item, "fixturenames", ()):
        item.add_marker("cluster")
