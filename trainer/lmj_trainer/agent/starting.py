"""How the processes are started that feed a tracker, or push the model."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from lmj_api.spec import LiveMigrationJob
from lmj_api.tokens import HUB, tracker_token
from lmj_trainer.agent.children import Children
from lmj_trainer.agent.deliveries import without_tokens
from lmj_trainer.agent.helper import Helper
from lmj_trainer.trackers.registry import token_variable


def start_tracker(job: LiveMigrationJob, file: Path, number: int, children: Children) -> Helper:
    """The process of tracker ``number`` of ``job``, which is in ``file``. Raises OSError."""
    command = [sys.executable, "-m", "lmj_trainer", "feed", "--job", str(file), "--number", str(number)]
    return Helper.start(command, tracker_environment(job, number, os.environ), children)


def tracker_environment(job: LiveMigrationJob, number: int, base: Mapping[str, str]) -> dict[str, str]:
    """``base`` with the credential of tracker ``number`` where its library looks for it, and without any other of the job's."""
    environment = without_tokens(base)
    token = base.get(tracker_token(number))
    if token is not None:
        # A Secret often ends in a line feed, which no header takes.
        environment[token_variable(job.spec.output.trackers[number])] = token.strip()
    return environment


def start_push(file: Path, children: Children) -> Helper:
    """The process that pushes the model of the job in ``file``. Raises OSError."""
    command = [sys.executable, "-m", "lmj_trainer", "publish", "--job", str(file)]
    return Helper.start(command, hub_environment(os.environ), children)


def hub_environment(base: Mapping[str, str]) -> dict[str, str]:
    """``base`` with the hub's credential where its library looks for it, and without any other of the job's."""
    environment = without_tokens(base)
    if HUB in base:
        environment["HF_TOKEN"] = base[HUB].strip()
    return environment
