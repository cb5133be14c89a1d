"""``python -m lmj_trainer publish --job FILE``: pushes the model of a job whose worker has completed (started by the agent)."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lmj_api.spec import LiveMigrationJob
from lmj_trainer.cli import Parser
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.publish.push import push


def main(argv: Sequence[str]) -> int:
    """Push what the job says, and tell its agent in a line what came of it. Returns the exit code. Raises UserError."""
    parser = Parser(prog="python -m lmj_trainer publish")
    parser.add_argument("--job", type=Path, required=True)
    arguments = parser.parse_args(argv)
    job = LiveMigrationJob.model_validate_json(arguments.job.read_bytes(), extra="ignore")
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
