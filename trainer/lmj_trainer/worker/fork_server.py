"""``python -m lmj_trainer fork-server``: a process that has everything imported, and forks a worker whenever its agent asks for one.

It does nothing else. What a forked process cannot have it must not have: a second thread (a lock that it holds at the fork is never
released), a GPU's context, an OpenMP region behind it (its threads are missed for ever). The worker is forked twice, so that the
agent becomes its parent: the agent learns of its end from the kernel, and the end of the fork server ends no worker.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence

from lmj_trainer import linux
from lmj_trainer.cli import Parser
from lmj_trainer.fork_request import GO, LONGEST_REQUEST, MOST_FILES, Request
from lmj_trainer.worker import libraries

ADOPTION_SECONDS = 10.0
"""The process between fork server and worker ends at once; if it took so long, something is very wrong."""

Work = Callable[[list[str]], int]


def main(argv: Sequence[str]) -> int:
    """Serve the agent until it is gone."""
    arguments = parser().parse_args(argv)

    if arguments.script:
        code = serve(arguments.fd, libraries.load_for_scripts, _launch, "launch")
    else:
        code = serve(arguments.fd, lambda: libraries.load(lora=arguments.lora), _train, "worker")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # nothing is to be put in order, and some libraries say much about it


def _train(argv: list[str]) -> int:
    from lmj_trainer.worker.main import main

    sys.argv = ["lmj_trainer worker", *argv]
    return main(argv)


def _launch(argv: list[str]) -> int:
    from lmj_trainer.launch.main import main

    sys.argv = ["lmj_trainer launch", *argv]
    return main(argv)


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    result = Parser(
        prog="lmj_trainer fork-server", description="Have everything imported, and fork workers from it (started by the agent)."
    )
    result.add_argument("--fd", type=int, required=True, metavar="N", help="socket to the agent")
    result.add_argument("--lora", action="store_true", help="the workers need peft too")
    result.add_argument("--script", action="store_true", help="the workers run a script, which needs other libraries")
    result.add_argument(
        "--room", metavar="TEXT", help="not used: its length is what a worker's arguments may have in lists of processes"
    )
    return result


def serve(fd: int, load: Callable[[], None], work: Work, name: str = "worker") -> int:
    """``load()``, then fork a process that does ``work(argv)`` at each request that comes over socket ``fd``, until that ends.

    ``name``: of the command that it is, as lists of processes show it.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # these go to the whole pod; this process ends with its agent, not before
    with socket.socket(fileno=fd) as control:
        began = time.monotonic()
        try:
            load()
        except Exception as error:  # noqa: BLE001 - a worker that is started without us says it in its own way
            return _refuse(control, f"{type(error).__name__}: {error}")
        if problem := _problem():
            return _refuse(control, problem)
        control.send(json.dumps({"ready": round(time.monotonic() - began, 3)}).encode())
        while True:
            message, files, _, _ = socket.recv_fds(control, LONGEST_REQUEST, MOST_FILES, socket.MSG_CMSG_CLOEXEC)
            try:
                if not message:
                    return 0
                if problem := _problem():
                    return _refuse(control, problem)
                _fork(Request.from_bytes(message), files, control, work, name)
            finally:
                for file in files:
                    os.close(file)


def _problem() -> str | None:
    """Why a fork of this process would be a broken one; None: it would not."""
    threads = linux.thread_count()
    return None if threads == 1 else f"it has {threads} threads, and a fork copies one"


def _refuse(control: socket.socket, problem: str) -> int:
    control.send(json.dumps({"problem": problem}).encode())
    return 1


def _fork(request: Request, files: Sequence[int], control: socket.socket, work: Work, name: str) -> None:
    """Fork the worker. Whether it came to life is its own to tell; the agent sees the files close when nobody has them."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        between = os.fork()
    except OSError as error:
        with contextlib.suppress(BrokenPipeError):  # nobody waits for this worker any more
            os.write(files[0], str(error).encode())
        return
    if between != 0:
        os.waitpid(between, 0)
        return
    code = 1
    try:
        try:
            child = os.fork()
        except OSError as error:
            os.write(files[0], str(error).encode())
        else:
            code = _live(request, files, control, work, name) if child == 0 else 0
    except BaseException:  # noqa: BLE001 - nothing may get back into the fork server's loop
        traceback.print_exc()
    finally:
        os._exit(code)


def _live(request: Request, files: Sequence[int], control: socket.socket, work: Work, name: str) -> int:
    """The worker's life; its exit code."""
    control.close()
    _become_child_of(request.parent)
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hello, stdout, stderr, *inherited = files
    for file, standard in ((stdout, 1), (stderr, 2)):
        os.dup2(file, standard)
        os.close(file)
    options = [word for option, file in zip(request.options, inherited, strict=True) for word in (option, str(file))]
    arguments = [*request.arguments, *options]
    linux.show_arguments([sys.executable, "-m", "lmj_trainer", name, *arguments])
    random.seed()  # as in any new process: else each worker would draw what the one before drew
    with socket.socket(fileno=hello) as to_agent:
        to_agent.send(str(os.getpid()).encode())
        if to_agent.recv(len(GO)) != GO:
            return 1  # the agent is gone, or waits for us no longer: another worker may run in our place
    try:
        return work(arguments)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _become_child_of(agent: int) -> None:
    """Wait until ``agent`` is the parent, and end with it. Raises RuntimeError when another one is."""
    between, deadline = os.getppid(), time.monotonic() + ADOPTION_SECONDS
    while (parent := os.getppid()) == between and between != agent and time.monotonic() < deadline:
        time.sleep(0.0001)  # the kernel tells nobody of a new parent
    linux.die_with_parent()
    # Looked at again, because the agent may have ended in between: then nobody will end this process.
    if parent != agent or os.getppid() != agent:
        raise RuntimeError(f"process {os.getppid()} is the parent of a new worker, where its agent, {agent}, should be")
