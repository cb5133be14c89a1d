"""Pods as process groups on this machine: the embedded default."""
