"""A cluster's jobs, for who makes and asks them: what the commands and the Python package call. The operator itself does not."""
