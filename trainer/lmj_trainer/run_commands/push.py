"""``lmj push OUTPUT``: pushes a run's model or adapter to the hub."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError

from lmj_api.spec import Hub
from lmj_trainer.cli import Parser
from lmj_trainer.errors import UserError
from lmj_trainer.publish.push import push
from lmj_trainer.run_commands.output import output_folder, read_run

if TYPE_CHECKING:
    from lmj_api.spec import LiveMigrationJob

_CLUSTER = (
    "a job on a cluster keeps its model on its output volume: mount that volume in a pod with the trainer's image and HF_TOKEN, and run"
    " lmj push with the folder there (lmj download brings the folder here as well)"
)


def main(argv: Sequence[str]) -> int:
    """Push what ``argv`` says. Returns the exit code. Raises UserError and OutageError."""
    parser = Parser(prog="lmj push", description="Pushes a run's model or adapter to the hub, as output.hub says.")
    parser.add_argument("output", metavar="OUTPUT", help="the run's output folder (output.path)")
    parser.add_argument("--repository", help="where to; without it, as output.hub says")
    parser.add_argument("-n", "--namespace", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    with output_folder(arguments.output, say, "model", "adapter") as folder:
        if arguments.namespace is not None or not folder.is_dir():
            raise UserError(f"{folder}: there is no such folder here; {_CLUSTER}")
        job = read_run(folder)
        done = push(job, _wanted(job, arguments.repository), say)
    print(f"{done.url} (commit {done.commit})")
    return 0


def _wanted(job: LiveMigrationJob, repository: str | None) -> Hub:
    known = job.spec.output.hub
    if repository is None and known is None:
        raise UserError("the run's job has no output.hub: say where to, with --repository OWNER/NAME")
    try:
        return (
            known
            if repository is None and known
            else Hub.model_validate({**(known.model_dump(by_alias=True) if known else {}), "repository": repository})
        )
    except ValidationError as error:
        raise UserError(f"--repository {repository}: {error.errors()[0]['msg']}") from error
