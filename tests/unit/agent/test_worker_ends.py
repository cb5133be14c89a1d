"""How a worker's process ends."""

import subprocess
import sys
from pathlib import Path

import pytest
from jobs import job_document

from lmj_api.protocol import USER_ERROR
from lmj_api.spec import LiveMigrationJob

WAIT_ON = """
import sys, threading
from lmj_trainer.worker import main

def prepare(job, pod, control):
    def write():
        raise BufferError("nobody expected this")
    threading.Thread(target=write, name="checkpoint-60", daemon=True).start()
    threading.Event().wait(60)  # for what the thread was to do

main.prepare_standby, main.Control = prepare, lambda fd: None
main.main(["--job", sys.argv[1], "--pod", "p", "--incarnation", "1", "--fd", "0"])
"""


REFUSE = """
import sys
from lmj_trainer.errors import UserError
from lmj_trainer.fetched import places_of
from lmj_trainer.worker import main

def prepare(job, pod, control):
    raise UserError(f"{places_of(job.spec)[0].path} has no rows")

main.prepare_standby, main.Control = prepare, lambda fd: None
main.main(["--job", sys.argv[1], "--pod", "p", "--incarnation", "1", "--fd", "0"])
"""


@pytest.mark.integration
def test_an_error_names_a_place_in_a_bucket_as_the_job_does(tmp_path: Path) -> None:
    document = job_document(tmp_path)
    document["spec"]["dataset"]["source"] = "s3://rows/data.csv"
    (tmp_path / "job.json").write_text(LiveMigrationJob.model_validate(document).model_dump_json())
    command = [sys.executable, "-c", REFUSE, str(tmp_path / "job.json")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50, start_new_session=True)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (USER_ERROR, "error: s3://rows/data.csv has no rows")


@pytest.mark.integration
def test_an_error_that_nobody_expected_in_a_thread_ends_the_worker_and_is_in_its_log(tmp_path: Path) -> None:
    """Else the rank trains on without what the thread was to do, and others wait for it."""
    job = LiveMigrationJob.model_validate(job_document(tmp_path))
    (tmp_path / "job.json").write_text(job.model_dump_json())
    done = subprocess.run(
        [sys.executable, "-c", WAIT_ON, str(tmp_path / "job.json")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        start_new_session=True,  # it gives way with all of its process group
    )
    assert done.returncode == 1, done.stderr
    assert "checkpoint-60 failed" in done.stderr
    assert "BufferError: nobody expected this" in done.stderr
