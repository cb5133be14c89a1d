"""What goes wrong with a test cluster."""


class Unavailable(Exception):  # noqa: N818 - a state of the machine, which tests turn into a skip
    """This machine can't run a cluster; the message is the plain reason and what to do."""


class ClusterError(Exception):
    """A cluster that should work does not; the message ends with the log lines that explain it."""
