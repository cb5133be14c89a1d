"""Threads beside compute."""

import os
import threading
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def answered(answer: Future[T], seconds: float) -> T:
    """What :func:`beside` returned, when it is there. Raises TimeoutError when that takes longer."""
    try:
        return answer.result(seconds)
    except TimeoutError:
        if answer.done():
            raise
        raise TimeoutError(f"it does not answer within {seconds:g} s") from None


def yield_to_compute() -> None:
    """The calling thread goes on in what compute leaves over: Linux has a nice value for each thread."""
    if hasattr(os, "sched_getaffinity"):
        thread = threading.get_native_id()
        # Never nearer to zero than it is: that takes a privilege, which a worker that was started with a nice value lacks.
        os.setpriority(os.PRIO_PROCESS, thread, max(10, os.getpriority(os.PRIO_PROCESS, thread)))
