"""Experiment trackers: each is fed from a run's files by a process of its own, beside training."""
