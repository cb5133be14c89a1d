"""A fork server of fake workers: ``python fake_fork_server.py ACT --fd FD --room TEXT``.

``ACT`` is done for loading: ``load`` nothing, ``thread`` starts a thread, ``fail`` raises, ``leave`` ends the process,
``childless`` has no more forks, ``slow:FILE`` waits until there is such a file. SIGUSR1 starts a thread.
"""

import errno
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import fake_worker

from lmj_trainer.worker.fork_server import serve


def load() -> None:
    name, _, argument = sys.argv[1].partition(":")
    match name:
        case "thread":
            start_thread(0, None)
        case "childless":
            os.fork = no_fork
        case "fail":
            raise ImportError("no such library")
        case "leave":
            sys.exit(3)
        case "slow":
            while not Path(argument).exists():
                time.sleep(0.01)


def start_thread(number: int, frame: object) -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def no_fork() -> int:
    raise BlockingIOError(errno.EAGAIN, "no more processes")


def work(argv: list[str]) -> int:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # what it means to its fork server is nothing to a worker
    if argv[0] == "exit":
        sys.exit("told to")
    if argv[0] == "raise":
        raise RuntimeError("a mistake in the worker")
    return fake_worker.main(argv)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, start_thread)
    sys.exit(serve(int(sys.argv[sys.argv.index("--fd") + 1]), load, work))
