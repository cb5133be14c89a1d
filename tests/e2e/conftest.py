"""Fixtures of the end-to-end tests."""

from cluster_fixture import cluster, own_cluster
from undisturbed_fixture import undisturbed_of

__all__ = ["cluster", "own_cluster", "undisturbed_of"]
