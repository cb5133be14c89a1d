"""A real Kubernetes cluster from plain processes and namespaces: real kubelets, containerd and runc, no Docker, no registry.

``python -m cluster up`` (with ``tests`` on the path; ``make cluster-up`` does that) starts one, ``down`` removes all of it. Each node is one
pid + mount + network + uts namespace, so killing its first process is a power cut. Needs root on Linux, Go, and a few Debian packages.

The pods' network is the bridge CNI plugin: it gives every pod an address but does not enforce NetworkPolicy.
"""

from cluster.cluster import Cluster
from cluster.errors import ClusterError, Unavailable

__all__ = ["Cluster", "ClusterError", "Unavailable"]
