"""What the README tells a user to do on a cluster: helm installs the chart, kubectl applies the quickstart, and a model comes out.

Nothing is changed for the test in the chart, nor in the file, but for the steps of the short form: the images' names lead to this
checkout, for that is what is tested, and an image with torch takes a quarter of an hour to build (``tests/images`` does it).
"""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chart_fixture import CHART, NAMESPACE, Installed, installed_chart
from cluster import Cluster
from cluster.admission import pods_with_environment
from cluster_fixture import Target
from operator_jobs import wait_for
from quickstart_jobs import QUICKSTART, quickstart_job

from lmj_api.names import parse_checkpoint_name
from lmj_operator.backend.signing_key import SigningKey

pytestmark = pytest.mark.e2e

RUN_SECONDS = 600.0
FEW = 200
"""Steps of the short form, which is for every day; the whole takes three minutes, here and there."""
ENOUGH = 0.9
"""Test accuracy that the README promises."""


@pytest.fixture(scope="module")
def chart(own_cluster: Cluster) -> Iterator[Installed]:
    with pods_with_environment(own_cluster.api, own_cluster.environment_mounts()), installed_chart(own_cluster) as installed:
        yield installed


def run_here(output: Path, *options: str) -> Path:
    """The results of ``lmj run examples/quickstart.yaml``."""
    command = [sys.executable, "-m", "lmj_operator.cli.main", "run", str(QUICKSTART), "--set", f"output.path={output}", "--plain"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=RUN_SECONDS, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return output


def losses(results: Path) -> list[tuple[int, float]]:
    """Step and loss, in the order in which they were written."""
    lines = [json.loads(line) for line in (results / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if line.get("loss") is not None]


@pytest.mark.parametrize("steps", [FEW, pytest.param(None, marks=pytest.mark.slow)])
def test_the_quickstart_trains_on_a_cluster_as_it_does_here_and_leaves_its_model_alone(
    cluster: Target, own_cluster: Cluster, chart: Installed, tmp_path: Path, steps: int | None
) -> None:
    local = run_here(tmp_path / "out", *([] if steps is None else ["--set", f"training.maxSteps={steps}"]))
    with quickstart_job(cluster, chart, own_cluster) as job:
        if steps is None:
            job.apply_file()
        else:
            job.document["metadata"]["namespace"] = job.namespace
            job.spec["training"]["maxSteps"] = steps
            job.apply()
        job.wait_for_phase("Succeeded", seconds=RUN_SECONDS)
        wait_for("the workload gone", lambda: job.left() == ["livemigrationjob.lmj.dev/quickstart"], job.describe)
        assert {"Started", "Running", "Succeeded"} <= set(job.events())
        status = job.status
        assert (status["restarts"], status["stepsLost"], status.get("incidents", [])) == (0, 0, [])
        assert len({rank["node"] for rank in status["ranks"]}) == 2
        here, there = losses(local), losses(job.results)
        assert [step for step, _ in here] == list(range(1, (steps or status["progress"]["step"]) + 1))
        assert there == here
        weights = Path("model", "model.safetensors")
        assert (job.results / weights).read_bytes() == (local / weights).read_bytes()
        found = json.loads((job.results / "evaluation.json").read_text())
        accuracy = next(each["accuracy"] for each in reversed(found) if each["split"] == "test")
        print(f"{len(there)} steps, all losses equal, test accuracy {accuracy:.4f}")
        assert steps is not None or accuracy >= ENOUGH
        assert chart.refused() == []


@pytest.mark.slow
def test_a_quickstart_that_is_deleted_as_it_trains_leaves_nothing_but_its_volume(
    cluster: Target, own_cluster: Cluster, chart: Installed
) -> None:
    with quickstart_job(cluster, chart, own_cluster) as job:
        job.apply_file()
        job.wait_for_step(20)
        assert {name.partition("/")[0] for name in job.left()} == {
            "livemigrationjob.lmj.dev",
            "networkpolicy.networking.k8s.io",
            "pod",
            "poddisruptionbudget.policy",
            "service",
        }
        at = job.step
        job.kubectl("delete", "lmj", "quickstart", "--namespace", job.namespace, "--timeout=60s")
        job.wait_until_gone()
        saved = [parse_checkpoint_name(file.parent.name)[0] for file in job.results.glob("checkpoints/step-*/manifest.json")]
        assert max(saved) >= at, "the pods took a last checkpoint as they were told to go"
        assert job.get("pvc/quickstart-output")["status"]["phase"] == "Bound"  # results outlive the job
        assert chart.refused() == []


@pytest.mark.slow
def test_the_operators_keys_are_kept_when_the_chart_is_upgraded(own_cluster: Cluster, chart: Installed) -> None:
    secret = ("--namespace", NAMESPACE, "get", "secret/lmj-agent-keys", "-o", "json")

    def keys() -> dict[str, str]:
        data: dict[str, str] = json.loads(own_cluster.kubectl(*secret))["data"]
        return data

    made = keys()
    assert list(made) == ["0001.pem"]
    assert f"new pods trust {SigningKey.of_pem(base64.b64decode(made['0001.pem'])).public}" in chart.said()
    added = base64.b64encode(SigningKey.generate().pem()).decode()
    patch = json.dumps({"data": {"0002.pem": added}})
    own_cluster.kubectl("--namespace", NAMESPACE, "patch", "secret/lmj-agent-keys", "-p", patch)
    own_cluster.helm("upgrade", "lmj", CHART, "--namespace", NAMESPACE, "--wait", "--timeout", "120s", seconds=150)
    assert keys() == {**made, "0002.pem": added}
    assert json.loads(own_cluster.kubectl(*secret))["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
