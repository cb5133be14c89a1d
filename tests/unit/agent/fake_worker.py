"""A worker without a model: speaks the line protocol, and does what its arguments say.

``python fake_worker.py ACT... --fd FD``: acts are done in order. ``view`` waits for a view and joins it, ``leave`` leaves it when
told, ``recut`` waits to hear who follows parts, and says it on stderr, ``drain`` waits for a drain, ``wait`` waits for ever,
``commit:N`` commits N steps at once, ``say:JSON`` sends a raw line, ``err:TEXT`` writes to stderr, ``stand`` has it say where it
stands when it is asked, ``fork`` leaves a child behind and prints its pid, ``orphan:FILE`` one in a session of its own that lives
until there is such a file (a minute at most), ``show`` prints what its memory file holds, ``touch:FILE`` makes a file, ``tell``
prints :func:`facts`, ``close`` closes the line, ``kill:N`` sends itself a signal, ``exit:N`` exits.
"""

import faulthandler
import json
import os
import random
import signal
import socket
import sys
import threading
import time


def main(argv: list[str]) -> int:
    acts, files = argv[: argv.index("--fd")], argv[argv.index("--fd") :]
    line = socket.socket(fileno=int(files[1]))
    commands = line.makefile("rb")

    def emit(kind: str, **details: object) -> None:
        line.sendall(json.dumps({"time": time.time(), "kind": kind, **details}).encode() + b"\n")

    def command(kind: str) -> dict[str, object]:
        while text := commands.readline():
            value = json.loads(text)
            if value["kind"] == kind:
                return value
        os._exit(1)

    for act in acts:
        name, _, argument = act.partition(":")
        match name:
            case "ready":
                emit("ready", address="127.0.0.1:1")
            case "view":
                view = command("view")["view"]
                emit("joined", view=view["number"])
            case "leave":
                number = command("leave")["number"]
                emit("lostPeer", view=number, message="told to leave", holding={"step": 7, "prepared": True})
            case "recut":
                recut = command("recut")["recut"]
                sys.stderr.write(f"followed by {[m['pod'] for m in recut['followers']] if recut else 'nobody'}\n")
                sys.stderr.flush()
            case "drain":
                command("drain")
                emit("drained")
            case "commit":
                for step in range(1, int(argument) + 1):
                    emit(
                        "committed",
                        progress={"step": step, "steps": 1000, "epoch": 0.0, "loss": 1.0 / step},
                        computeSeconds=0.25,
                        waitingSeconds=0.5,
                    )
            case "say":
                line.sendall(argument.encode() + b"\n")
            case "part":
                line.sendall(argument.encode())
            case "err":
                sys.stderr.write(argument + "\n")
                sys.stderr.flush()
            case "env":
                sys.stderr.write(os.environ.get(argument, "unset") + "\n")
                sys.stderr.flush()
            case "fork":
                child = os.fork()
                if child == 0:
                    time.sleep(600)
                sys.stderr.write(f"child {child}\n")
                sys.stderr.flush()
            case "stand":
                faulthandler.register(signal.SIGUSR1, all_threads=True)
            case "orphan":
                read, write = os.pipe()
                child = os.fork()
                if child == 0:
                    os.setsid()
                    os.dup2(write, 0)
                    os.closerange(1, 100)
                    os.write(0, b".")
                    end = time.monotonic() + 60
                    while not os.path.exists(argument) and time.monotonic() < end:
                        time.sleep(0.01)
                    os._exit(0)
                os.read(read, 1)
                sys.stderr.write(f"child {child}\n")
                sys.stderr.flush()
            case "show":
                sys.stderr.write(os.pread(int(files[files.index("--memory-fd") + 1]), 100, 0).decode() + "\n")
            case "touch":
                open(argument, "w").close()
            case "close":
                commands.close()
                line.close()
            case "kill":
                os.kill(os.getpid(), int(argument))
            case "exit":
                os._exit(int(argument))
            case "wait":
                threading.Thread(target=lambda: command("never"), daemon=True).start()
                while True:
                    signal.pause()
            case "tell":
                sys.stderr.write(json.dumps(facts()) + "\n")
                sys.stderr.flush()
    return 0


def facts() -> dict[str, object]:
    """What a process finds itself to be."""
    names = [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "files": sorted(os.readlink(f"/proc/self/fd/{name}").partition(":")[0] for name in names),
        "line": open("/proc/self/cmdline", "rb").read().decode().rstrip("\0").split("\0"),
        "terminate": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "random": random.random(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
