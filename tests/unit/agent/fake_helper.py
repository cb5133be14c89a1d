"""A process that plays a tracker's: ``python fake_helper.py LOG ACT``. It writes what it hears to LOG, and does as ACT says.

``good`` ends when told to, ``dies`` at once with code 7, ``missing`` with code 2, ``deaf`` never ends; ``warns`` says so and is good.
"""

import json
import os
import sys
import threading


def main(log: str, act: str) -> int:
    def write(text: str) -> None:
        with open(log, "a") as file:
            file.write(text + "\n")

    write(f"begins {os.getpid()}")
    if act in ("dies", "missing"):
        return 7 if act == "dies" else 2
    if act == "warns":
        print("a library's line")
        print(json.dumps({"warning": "it is slow"}), flush=True)
    for line in sys.stdin:
        write(line.strip())
        if line.startswith("end") and act != "deaf":
            return 0
    write("let go")
    if act == "deaf":
        threading.Event().wait(60)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
