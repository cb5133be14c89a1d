"""A call in a thread of its own."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def beside(call: Callable[[], T], name: str) -> Future[T]:
    """What ``call`` returns, or raises, in a daemon thread: a process can end while storage hangs, or gigabytes are being read."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # it cannot be cancelled, only left alone

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  handed to the thread that waits
            answer.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return answer
