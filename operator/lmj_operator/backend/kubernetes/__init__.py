"""Pods of a Kubernetes cluster: builders of objects, what is seen of them, and the backend that brings both together."""
