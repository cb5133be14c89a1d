"""Threads beside compute."""

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from lmj_trainer.beside import beside

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """What ``call`` returns, or raises, in a thread of its own. Raises TimeoutError when that takes longer: storage may hang."""
    answer = beside(call, "within")
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
