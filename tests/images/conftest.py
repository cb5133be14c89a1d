"""Fixtures of these tests."""

from cluster_fixture import cluster, own_cluster

from images.fixture import operator_image

__all__ = ["cluster", "operator_image", "own_cluster"]
