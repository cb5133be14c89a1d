"""A worker without a model: speaks the line protocol, and does what its arguments say.

``python fake_worker.py FD ACT...``: acts are done in order. ``view`` waits for a view and joins it, ``drain`` waits for a drain,
``wait`` waits for ever, ``commit:N`` commits N steps at once, ``say:JSON`` sends a raw line, ``err:TEXT`` writes to stderr,
``fork`` leaves a child behind and prints its pid, ``close`` closes the line, ``kill:N`` sends itself a signal, ``exit:N`` exits.
"""

import json
import os
import signal
import socket
import sys
import threading
import time


def main(fd: int, acts: list[str]) -> None:
    line = socket.socket(fileno=fd)
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
            case "drain":
                command("drain")
                emit("drained")
            case "commit":
                for step in range(1, int(argument) + 1):
                    emit("committed", progress={"step": step, "steps": 1000, "epoch": 0.0, "loss": 1.0 / step})
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
            case "close":
                commands.close()
                line.close()
            case "kill":
                os.kill(os.getpid(), int(argument))
            case "exit":
                os._exit(int(argument))
            case "wait":
                threading.Thread(target=lambda: command("never"), daemon=True).start()
                signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
