"""A hundred faults of all kinds in one job on a cluster: it ends with the losses and weights of a run that was left alone. Once of two
stages with snapshots in memory and a standby, once of two replicas, whose number changes meanwhile, and once of two stages with its
checkpoints in object storage.

``LMJ_SOAK_SEED`` repeats a row of faults, ``LMJ_SOAK_FAULTS`` makes it shorter, ``LMJ_SOAK_KINDS`` has faults of some kinds only
(``WORKER PARTED``).
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from clocks import Clocks
from cluster import Cluster
from cluster.images import BASE
from cluster_fault_plan import OF_A_BUCKET, OF_REPLICAS, OF_STAGES, Kind, plan
from cluster_faults import Storm
from cluster_fixture import Target
from cluster_injection import Injector
from cluster_processes import agents
from hub import Hub
from jobs import Job, job_document
from operator_fixture import forget_volumes
from operator_jobs import ClusterJob, OperatorProcess, define, wait_for
from parity_jobs import make_model
from s3_server import Restartable

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODEL = "someone/tiny"
SEED = int(os.environ.get("LMJ_SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
FAULTS = int(os.environ.get("LMJ_SOAK_FAULTS", "100"))
KINDS = [Kind[name] for name in os.environ.get("LMJ_SOAK_KINDS", "").split()]
STEPS_EACH = 120
"""Steps of the job for each fault: what passes between two, and while one is under way."""
STEPS = 300 + STEPS_EACH * FAULTS
STALL_SECONDS = 120.0
"""Without a new step, when all faults are over."""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


@pytest.fixture
def clocks(own_cluster: Cluster) -> Clocks:
    """One for the operator, and one for the pods of each node."""
    made = Clocks(own_cluster.small_disk / "clocks")
    made.build()
    for name in ("operator", *own_cluster.node_names()):
        made.set(name)
    return made


@pytest.fixture
def hub(own_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Of the job's model; pods reach it, and so do runs of this process."""
    made = Hub(host=own_cluster.host)
    made.publish(MODEL, make_model(tmp_path / "model", "bert", layers=2))
    with made.serving():
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setenv("NO_PROXY", made.host)
        yield made


@pytest.fixture
def operator(cluster: Target, own_cluster: Cluster, clocks: Clocks, tmp_path: Path) -> Iterator[OperatorProcess]:
    define(cluster)
    process = OperatorProcess(cluster.kubeconfig, tmp_path / "operator.log", BASE, clocks.env("operator"))
    process.start()
    yield process
    process.kill(signal.SIGTERM)


STAGES = {"recovery": {"memorySnapshot": {"everySteps": 5}, "standby": 1}}
REPLICAS = {"pipeline": {"stages": 1, "microBatches": 4}, "dataParallel": {"shards": 4, "replicas": 2}, "recovery": {}}
BUCKET = {**STAGES, "checkpoint": {"everySteps": 20, "secretName": "bucket"}}
"""What the jobs' specs differ in."""
KINDS_OF = {"stages": OF_STAGES, "replicas": OF_REPLICAS, "bucket": OF_A_BUCKET}
"""What happens to each."""


@pytest.fixture
def storage(own_cluster: Cluster, tmp_path: Path) -> Iterator[Restartable]:
    made = Restartable(tmp_path, own_cluster.host)
    yield made
    made.stop()


@pytest.fixture
def job(
    request: pytest.FixtureRequest,
    cluster: Target,
    own_cluster: Cluster,
    operator: OperatorProcess,
    clocks: Clocks,
    hub: Hub,
    storage: Restartable,
) -> Iterator[ClusterJob]:
    environment = own_cluster.environment_mounts()
    disk = {"name": "small", "hostPath": {"path": str(own_cluster.small_disk), "type": "Directory"}}
    mounts = [*environment.volume_mounts, {"name": "small", "mountPath": "/small"}]
    node = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    clock = [{"name": name, "value": value} for name, value in clocks.env("$(NODE)", Path("/small/clocks")).items()]
    hub_env = [{"name": "HF_ENDPOINT", "value": hub.endpoint}, {"name": "HF_HOME", "value": "/tmp/hub"}]
    trainer = {"name": "trainer", "env": [*environment.env, node, *clock, *hub_env], "volumeMounts": mounts}
    document = job_document(Path("out"))
    # Processes of all of this machine's pods are seen: a name that no other job has.
    document["metadata"]["name"] = f"soak-{os.getpid()}"
    template = {"spec": {"volumes": [*environment.volumes, disk], "containers": [trainer]}}
    document["spec"]["model"] = {"source": MODEL, "labels": ["negative", "positive"]}
    made = ClusterJob(cluster, operator, template, document)
    try:
        made.volumes()
        made.spec["training"] |= {"maxSteps": STEPS, "epochs": STEPS}
        made.spec["checkpoint"] = {"everySteps": 20, "path": f"/small/{made.namespace}"}
        made.spec["migration"] = {"onCordon": "Never"}  # else no eviction is let through: moves are asked for
        made.spec |= deepcopy(request.param)
        if "secretName" in made.spec["checkpoint"]:
            made.spec["checkpoint"]["path"] = f"{storage.server.bucket('jobs')}/{made.namespace}"
            made.secret("bucket", storage.server.environment)
        made.spec["recovery"] |= {
            "maxRestarts": 100_000,
            "backoffSeconds": 0.1,
            "maxBackoffSeconds": 1,
            "hangTimeoutSeconds": 8,
            "nodeGoneSeconds": 5,
            # Each of the three nodes fails more often than a cluster's do: a pod that avoids all of them takes one soon.
            "avoidNode": {"fallbackSeconds": 10},
        }
        yield made
    finally:
        made.remove()
        forget_volumes(cluster, made.namespace)


@pytest.mark.parametrize(
    ("job", "name"),
    [
        pytest.param(STAGES, "stages", id="stages"),
        pytest.param(REPLICAS, "replicas", id="replicas"),
        pytest.param(BUCKET, "bucket", id="bucket"),
    ],
    indirect=["job"],
)
def test_a_hundred_faults_change_nothing(
    job: ClusterJob,
    name: str,
    operator: OperatorProcess,
    own_cluster: Cluster,
    clocks: Clocks,
    hub: Hub,
    storage: Restartable,
    tmp_path: Path,
) -> None:
    say(f"LMJ_SOAK_SEED={SEED} LMJ_SOAK_FAULTS={FAULTS}, {STEPS} steps")
    assert job.output is not None
    metrics = job.output / "out" / "metrics.jsonl"
    job.apply()
    job.wait_for_step(10)
    injector = Injector(own_cluster, job, operator, job.output, clocks, hub, storage)
    storm = Storm(injector, job, metrics, say)
    kinds = KINDS_OF[name]
    storm.go_through(plan(SEED, FAULTS, only=[kind for kind in kinds if kind in (KINDS or kinds)]), STEPS)
    say(f"all faults are over at step {storm.highest}\n{storm.figures()}")
    storm.go_to_the_end(STALL_SECONDS)
    job.wait_for_phase("Succeeded")
    status = job.status
    counts = ("restarts", "stepsLost", "migrations")
    say(f"view {status['view']['number']}, {', '.join(f'{name} {status[name]}' for name in counts)}")
    wait_for("no process of the job", lambda: not agents(job.name), job.describe)

    undisturbed = Job(tmp_path / "undisturbed")
    document = yaml.safe_load(undisturbed.file.read_text())
    document["spec"] |= {name: job.spec[name] for name in ("model", "pipeline", "dataParallel") if name in job.spec}
    undisturbed.file.write_text(yaml.safe_dump(document))
    sets = (f"training.maxSteps={STEPS}", f"training.epochs={STEPS}", "checkpoint.everySteps=1000")
    done = undisturbed.run("--plain", *(word for text in sets for word in ("--set", text)))
    assert done.returncode == 0, done.stderr
    assert rows(metrics) == rows(undisturbed.metrics)
    weights = Path("model", "model.safetensors")
    assert (job.output / "out" / weights).read_bytes() == (undisturbed.output / weights).read_bytes()


def rows(metrics: Path) -> list[tuple[int, float]]:
    """Step and loss of each line, in order."""
    return [(line["step"], line["loss"]) for line in map(json.loads, metrics.read_text().splitlines())]
