"""Fixtures of the end-to-end tests."""

from cluster_fixture import cluster, own_cluster

__all__ = ["cluster", "own_cluster"]
