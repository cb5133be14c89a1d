"""``python -m lmj_trainer COMMAND``: what runs in a trainer pod, and its tools. Each command imports only what it needs."""

import os
import signal

if __name__ == "__main__" and os.getpid() == 1:
    # The first process of a container does not get a SIGTERM that nobody listens to. A pod that is deleted while the rest is imported would
    # stay for all of its grace period.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))

import importlib
import sys
from collections.abc import Sequence

from lmj_trainer.errors import OutageError, UserError

COMMANDS = {
    "agent": ("lmj_trainer.agent.main", "supervise the worker of one rank and answer the operator"),
    "worker": ("lmj_trainer.worker.main", "train one rank (started by the agent)"),
    "launch": ("lmj_trainer.launch.main", "run the processes of a user's script for one rank (started by the agent)"),
    "relay": ("lmj_trainer.relay.main", "carry what workers say to each other, encrypted (started by the agent)"),
    "fork-server": ("lmj_trainer.worker.fork_server", "be what workers are forked from (started by the agent)"),
    "check": ("lmj_trainer.check", "check a job's data and model before anything is started"),
    "continue": ("lmj_trainer.continuing", "say where a run goes on that is to be longer (started by lmj run)"),
    "init": ("lmj_trainer.init", "write a job's file for a file of rows"),
    "evaluate": ("lmj_trainer.evaluate", "evaluate a saved model on labelled data"),
    "push": ("lmj_trainer.run_commands.push", "push a run's model or adapter to the hub"),
    "publish": ("lmj_trainer.publish.main", "push the model of a job that has completed (started by the agent)"),
    "track": ("lmj_trainer.run_commands.track", "send what a run recorded to its experiment trackers"),
    "feed": ("lmj_trainer.trackers.main", "feed one tracker of a job that trains (started by the agent)"),
    "predict": ("lmj_trainer.predict", "label texts with a saved model"),
    "checkpoints": ("lmj_trainer.checkpoint.main", "list and verify the checkpoints in a folder"),
    "export": ("lmj_trainer.exporting.main", "write the model of a checkpoint as a save_pretrained folder"),
}
"""Command: the module whose ``main(argv) -> int`` runs it, and what it does. Imported late: torch alone takes seconds."""


def usage() -> str:
    """What ``--help`` prints."""
    lines = [f"  {name:<12} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(["usage: python -m lmj_trainer COMMAND [OPTION...]", "", *lines])


def run(argv: Sequence[str]) -> int:
    """Run the command that ``argv`` names and return its exit code. Raises UserError for a command that is not there."""
    if not argv:
        raise UserError(f"no command given: use one of {', '.join(COMMANDS)}")
    name, *rest = argv
    if name in ("-h", "--help"):
        sys.stdout.write(usage() + "\n")
        return 0
    if name not in COMMANDS:
        from lmj_api.nearest import did_you_mean

        raise UserError(f"there is no command {name!r}{did_you_mean(name, COMMANDS)} (commands: {', '.join(COMMANDS)})")
    code = importlib.import_module(COMMANDS[name][0]).main(rest)
    return int(code)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of ``argv`` (default: the process's arguments); a user's mistake is one line on stderr and exit code 2."""
    try:
        return run(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        from lmj_api.protocol import USER_ERROR

        sys.stderr.write("error: " + " ".join(str(error).split()) + "\n")
        return USER_ERROR
    except OutageError as error:
        sys.stderr.write("error: " + " ".join(str(error).split()) + "; try again later\n")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
