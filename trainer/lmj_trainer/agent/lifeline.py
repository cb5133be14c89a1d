"""The lifeline: a pipe on stdin that the parent holds open. Its end is the parent's end, however that died."""

import os
import sys
import threading
from collections.abc import Callable


def watch(on_end: Callable[[], None], descriptor: int = 0) -> None:
    """Call ``on_end`` and leave this process, at once, when the pipe ends.

    In a thread of its own, so that it works while the event loop is busy or stuck.
    """

    def wait() -> None:
        try:
            while os.read(descriptor, 4096):
                pass
        except OSError as error:
            sys.stderr.write(f"the lifeline cannot be read: {error}\n")
        on_end()
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
