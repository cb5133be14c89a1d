"""``lmj push FOLDER``, and the process that an agent starts when its worker has completed."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from lmj_api.spec import Hub, LiveMigrationJob
from lmj_trainer.cli import Parser
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.publish.push import push
from lmj_trainer.trackers.main import read_run

_CLUSTER = (
    "a job on a cluster keeps its model on its output volume: mount that volume in a pod with the trainer's image and HF_TOKEN, and run"
    " lmj push with the folder there (lmj download brings the folder here as well)"
)


def main(argv: Sequence[str]) -> int:
    """``push FOLDER``, or ``push --job FILE`` for an agent. Returns the exit code. Raises UserError and OutageError."""
    parser = Parser(prog="lmj push", description="Pushes a run's model or adapter to the hub, as output.hub says.")
    parser.add_argument("folder", type=Path, nargs="?", help="the run's output folder")
    parser.add_argument("--repository", help="where to; without it, as output.hub says")
    parser.add_argument("-n", "--namespace", help=argparse.SUPPRESS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.job is not None:
        return _beside(LiveMigrationJob.model_validate_json(arguments.job.read_bytes(), extra="ignore"))
    if arguments.folder is None:
        raise UserError("which run? lmj push OUTPUT-FOLDER")
    if arguments.namespace is not None or not arguments.folder.is_dir():
        raise UserError(f"{arguments.folder}: there is no such folder here; {_CLUSTER}")
    job = read_run(arguments.folder)
    hub = _wanted(job, arguments.repository)
    done = push(job, hub, lambda line: print(line, file=sys.stderr))
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


def _beside(job: LiveMigrationJob) -> int:
    """Push what the job says, and tell its agent in a line what came of it."""
    told = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    assert job.spec.output.hub is not None
    try:
        done = push(job, job.spec.output.hub, lambda line: print(line, file=sys.stderr))
    except (UserError, OutageError) as error:
        told.write(json.dumps({"problem": str(error)}) + "\n")
        return 0
    told.write(json.dumps({"url": done.url, "commit": done.commit}) + "\n")
    return 0
