"""What ``lmj migrate`` asks of a job, and how it hears of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import JOBS, ApiServer
from click.testing import Result
from planned import job_spec
from typer.testing import CliRunner

from lmj_api.cut import Cut
from lmj_api.spec import LiveMigrationJob, Metadata
from lmj_api.status import JobStatus, MoveStatus, Phase, RankStatus, RecutStatus
from lmj_operator.backend.local.lock import RunLock
from lmj_operator.backend.local.store import RunStore
from lmj_operator.cli.errors import CommandError
from lmj_operator.cli.main import app
from lmj_operator.cli.training import ClusterTraining, LocalTraining, move_request
from lmj_operator.plan.moves.request import MoveRequest, parse_request

RANKS = [RankStatus(rank=rank, state="Running") for rank in (0, 1)]


PLACE = JOBS.format("team") + "/tiny"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A cluster."""
    with ApiServer() as made:
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig(tmp_path)))
        yield made


def there(server: ApiServer, status: JobStatus) -> ClusterTraining:
    """A job with ``status`` there."""
    body = {"metadata": {"name": "tiny", "namespace": "team"}, "status": json.loads(status.to_json())}
    server.put(PLACE, body)
    return ClusterTraining("tiny", "team")


def test_a_request_is_what_the_plan_reads() -> None:
    assert parse_request(move_request([1, 0], "node-3"), 2) == MoveRequest((1, 0), "node-3")
    assert parse_request(move_request([1], None), 2) == MoveRequest((1,))


def test_a_job_on_a_cluster_is_asked_by_an_annotation(server: ApiServer) -> None:
    job = there(server, JobStatus(phase=Phase.RUNNING, ranks=RANKS))
    assert len(job.status().ranks) == 2
    job.ask("1 to=n 7")
    assert server.objects[PLACE]["metadata"]["annotations"] == {"lmj.dev/migrate": "1 to=n 7"}


def test_a_cluster_that_says_no(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    job = ClusterTraining("tiny", "team")
    with pytest.raises(CommandError, match=r"^team/tiny: there is no such job$"):
        job.status()
    there(server, JobStatus())
    server.refuse["GET"] = [(403, {"message": "you may not"})]
    with pytest.raises(CommandError, match=r"403 you may not$"):
        job.status()
    server.status(PLACE, phase="Levitating")
    with pytest.raises(CommandError, match=r"team/tiny: its status is not one of this version's .phase."):
        job.status()
    monkeypatch.setenv("KUBECONFIG", "/none")
    with pytest.raises(CommandError, match=r"^no cluster: .*set KUBECONFIG$"):
        job.status()


def test_a_job_that_has_ended_is_not_asked(server: ApiServer, tmp_path: Path) -> None:
    job = there(server, JobStatus(phase=Phase.SUCCEEDED))
    for ask in (lambda: job.ask("1"), lambda: job.scale(2, None)):
        with pytest.raises(CommandError, match=r"team/tiny: the job has ended"):
            ask()
    with pytest.raises(CommandError, match=r"no job runs here: start it with lmj run"):
        LocalTraining(tmp_path).ask("1")


def cluster_job(server: ApiServer, replicas: int) -> ClusterTraining:
    """A job that trains with so many of its shards."""
    parts = {"shards": 8, "replicas": replicas, "minReplicas": 2, "maxReplicas": 4, "later": 1}
    body = {"metadata": {"name": "tiny", "namespace": "team"}, "spec": {"dataParallel": parts}, "status": {"phase": "Running"}}
    server.put(PLACE, body)
    return ClusterTraining("tiny", "team")


def changes(server: ApiServer) -> list[tuple[str, Any]]:
    return [(path, body) for method, path, body in server.calls if method == "PATCH"]


def test_a_job_on_a_cluster_is_scaled_as_kubectl_does(server: ApiServer) -> None:
    cluster_job(server, 2).scale(4, None)
    assert changes(server) == [(f"{PLACE}/scale?fieldManager=lmj", {"spec": {"replicas": 4}})]


BOUNDS = [
    (5, "replicas 5 is more than maxReplicas 4: raise maxReplicas first"),
    (1, "minReplicas 2 is more than replicas 1"),
]


@pytest.mark.parametrize(("replicas", "says"), BOUNDS)
def test_more_or_fewer_replicas_than_the_job_may_have_are_refused_in_a_line(
    server: ApiServer, tmp_path: Path, replicas: int, says: str
) -> None:
    with pytest.raises(CommandError) as told:
        cluster_job(server, 2).scale(replicas, None)
    assert told.value.lines == (says,)
    assert changes(server) == []
    folder = tmp_path / ".lmj"
    folder.mkdir()
    store = RunStore(folder)
    parts = {"shards": 8, "replicas": 2, "minReplicas": 2, "maxReplicas": 4}
    spec = job_spec(1, pipeline={"stages": 1, "microBatches": 8}, training={"batchSize": 8}, dataParallel=parts)
    store.write_job(LiveMigrationJob(metadata=Metadata(name="tiny"), spec=spec))
    with RunLock(folder / "lock"):
        with pytest.raises(CommandError) as told:
            LocalTraining(folder).scale(replicas, None)
        assert told.value.lines == (says,)
        assert store.read_scale().replicas is None
        LocalTraining(folder).scale(4, None)
    assert store.read_scale().replicas == 4


class Answers(LocalTraining):
    """A run that takes the request up in ``status``."""

    def __init__(self, folder: Path, **status: Any) -> None:
        super().__init__(folder)
        self.after = status

    def ask(self, request: str) -> None:
        super().ask(request)
        self._store.write_status(JobStatus(ranks=RANKS, move_request=request, **self.after))


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ({"move_refused": "no rank is moved: migration.strategy is Never"}, "no rank is moved: migration.strategy is Never"),
        ({"moves": [MoveStatus(rank=1, serial=1, reason="r", since=1.0, given_up="it stays")]}, "rank 1: it stays"),
    ],
)
def test_why_a_rank_does_not_move_is_the_commands_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], says: str
) -> None:
    folder = tmp_path / ".lmj"
    folder.mkdir()
    RunStore(folder).write_status(JobStatus(ranks=RANKS))
    monkeypatch.setattr("lmj_operator.cli.training.LocalTraining", lambda f: Answers(f, **status))
    with RunLock(folder / "lock"):
        told = CliRunner().invoke(app, ["migrate", str(tmp_path), "--rank", "1"])
    assert isinstance(told.exception, CommandError)
    assert told.exception.lines == (says,)


class Scaled(LocalTraining):
    """A run in which what is asked for is so at once, or is given up."""

    def __init__(self, folder: Path, given_up: str | None = None) -> None:
        super().__init__(folder)
        self.given_up = given_up

    def scale(self, replicas: int | None, stages: int | None) -> None:
        super().scale(replicas, stages)
        wanted = self._store.read_scale()
        status = JobStatus(replicas=wanted.replicas or 1, stages=wanted.stages or 1)
        if self.given_up is not None:
            recut = RecutStatus(cut=Cut(stages=wanted.stages or 1), given_up=self.given_up)
            status = JobStatus(replicas=1, stages=1, cut=Cut(stages=1), recut=recut)
        self._store.write_status(status)


def scaled(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str, given_up: str | None = None) -> Result:
    """``lmj scale`` of a run of one replica of one stage, which can have two of each."""
    run = folder / ".lmj"
    run.mkdir()
    spec = {
        "pipeline": {"stages": 1, "microBatches": 4},
        "dataParallel": {"shards": 2},
        "model": {"scratch": {}},
        "dataset": {"source": "d.csv", "text": ["text"], "label": "label"},
        "output": {"path": str(folder)},
    }
    RunStore(run).write_job(LiveMigrationJob.model_validate({"metadata": {"name": "job"}, "spec": spec}))
    RunStore(run).write_status(JobStatus(replicas=1, stages=1))
    monkeypatch.setattr("lmj_operator.cli.training.LocalTraining", lambda folder: Scaled(folder, given_up))
    with RunLock(run / "lock"):
        return CliRunner().invoke(app, ["scale", str(folder), *words])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--stages", "2"], "2 stages train"),
        (["--replicas", "2"], "2 replicas train"),
        (["--replicas", "2", "--stages", "3"], "2 replicas of 3 stages train"),
        (["--stages", "2", "--timeout", "0"], "asked for 2 stages"),
        (["--stages", "2", "-o", "json"], '{"before": 1, "stagesBefore": 1, "stages": 2}'),
    ],
)
def test_stages_and_replicas_are_asked_for_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    told = scaled(tmp_path, monkeypatch, *words)
    assert (told.exit_code, told.output.strip()) == (0, says)


@pytest.mark.parametrize(
    ("words", "given_up", "says"),
    [
        ([], None, "give --replicas, --stages, or both"),
        (["--replicas", "3"], None, "replicas 3 is more than shards 2: each replica needs a shard"),
        (
            ["--stages", "9"],
            "pipeline.stages 9 is more than the model's 4 layers",
            "the layers stay in 1 stage: pipeline.stages 9",
        ),
    ],
)
def test_what_cannot_be_had_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], given_up: str | None, says: str
) -> None:
    told = scaled(tmp_path, monkeypatch, *words, given_up=given_up)
    assert isinstance(told.exception, CommandError)
    assert told.exception.lines[0].startswith(says)


def test_a_job_on_a_cluster_is_scaled_by_a_change_of_its_spec(server: ApiServer) -> None:
    job = cluster_job(server, 2)
    job.scale(3, 3)
    job.scale(None, 3)
    assert changes(server) == [
        (f"{PLACE}?fieldManager=lmj", {"spec": {"dataParallel": {"replicas": 3}, "pipeline": {"stages": 3}}}),
        (f"{PLACE}?fieldManager=lmj", {"spec": {"pipeline": {"stages": 3}}}),
    ]
