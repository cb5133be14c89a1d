"""The trainer's commands, ``lmj init`` and those after it, with all arguments passed on."""

import typer

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Context settings of these commands: every argument, ``--help`` too, is the trainer's."""


def init(context: typer.Context) -> None:
    """Write a job's file for a file of labelled texts: lmj init DATA [OPTION...]."""
    _become("init", context)


def evaluate(context: typer.Context) -> None:
    """Evaluate a saved model on labelled data: lmj evaluate MODEL DATA [OPTION...]."""
    _become("evaluate", context)


def predict(context: typer.Context) -> None:
    """Label texts with a saved model: lmj predict MODEL TEXT... [OPTION...]."""
    _become("predict", context)


def checkpoints(context: typer.Context) -> None:
    """List and verify the checkpoints in a folder: lmj checkpoints DIR [OPTION...]."""
    _become("checkpoints", context)


def export(context: typer.Context) -> None:
    """Write the model of a checkpoint, also while the job trains: lmj export OUTPUT --to FOLDER [--step N]."""
    _become("export", context)


def track(context: typer.Context) -> None:
    """Send what a run recorded to its experiment trackers, what they do not have yet: lmj track OUTPUT."""
    _become("track", context)


def push(context: typer.Context) -> None:
    """Push a run's model or adapter to the hub: lmj push OUTPUT [OPTION...]."""
    _become("push", context)


def _become(command: str, context: typer.Context) -> None:
    from lmj_operator.cli.trainer import become

    become(command, context.args)
