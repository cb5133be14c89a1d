"""The jobs of the page about scripts are jobs."""

import re
from pathlib import Path

import yaml

from lmj_api.spec import LiveMigrationJob

TEXT = (Path(__file__).parents[3] / "docs" / "script.md").read_text()


def test_its_jobs_are_jobs() -> None:
    documents = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]
    head = {"apiVersion": "lmj.dev/v1alpha1", "kind": "LiveMigrationJob", "metadata": {"name": "script"}}
    jobs = [LiveMigrationJob.model_validate({**head, **document}) for document in documents]
    assert len(jobs) == 3
    assert all(job.spec.command is not None for job in jobs)
