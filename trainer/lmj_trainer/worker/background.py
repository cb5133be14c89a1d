"""Threads beside compute."""

import os
import threading


def yield_to_compute() -> None:
    """The calling thread goes on in what compute leaves over: Linux has a nice value for each thread."""
    if hasattr(os, "sched_getaffinity"):
        thread = threading.get_native_id()
        # Never nearer to zero than it is: that takes a privilege, which a worker that was started with a nice value lacks.
        os.setpriority(os.PRIO_PROCESS, thread, max(10, os.getpriority(os.PRIO_PROCESS, thread)))
