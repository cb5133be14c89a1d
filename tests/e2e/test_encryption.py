"""Ranks behind relays: they move and die as others do, and learn the same."""

import os
import signal
import sys
from pathlib import Path

import pytest
from faults import last_step
from jobs import Job, wait_until
from moving import SETTINGS, assert_as_undisturbed, leave, migrate
from test_chaos import running

from lmj_operator.backend.local.process import command_line

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="relays run on Linux")]


def relays(job: Job) -> dict[int, list[str]]:
    """The command lines of the job's relays, by process."""
    found = {int(name): command_line(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: words for pid, words in found.items() if "relay" in words and any(str(job.output) in word for word in words)}


def test_what_is_encrypted_changes_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path / "behind")
    with running(job, 100_000, *SETTINGS, "network.encryption=Required") as process:
        wait_until(lambda: last_step(job) > 3, process)
        first = relays(job)
        assert len(first) == 2
        assert all(member["address"].startswith("tls://127.0.0.1:") for member in job.status()["view"]["members"])
        told = migrate(job, 1)
        assert [(i["kind"], i["rank"], i["stepsLost"]) for i in told["incidents"]] == [("Moved", 1, 0)]
        told = migrate(job, 0, 1)
        assert {(i["kind"], i["rank"], i["stepsLost"]) for i in told["incidents"]} == {("Moved", 0, 0), ("Moved", 1, 0)}
        # A rank's worker goes with its relay, and another maps its memory.
        step = last_step(job)
        os.kill(next(iter(relays(job))), signal.SIGKILL)
        wait_until(lambda: job.status()["restarts"] > 0 and last_step(job) > step + 20, process)
        assert len(relays(job)) == 2
        leave(job, process, last_step(job) + 20)
    status = job.status()
    assert (status["migrations"], status["stepsLost"]) == (3, 0)
    assert relays(job) == {}
    assert_as_undisturbed(job, Job, tmp_path / "undisturbed")
