"""The operator's process on a cluster: watches, one task a job, events, metrics."""
