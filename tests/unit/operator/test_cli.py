"""The command without a trainer: options, messages, files."""

import io
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from lmj_api.cut import Cut
from lmj_api.layout import Layout
from lmj_api.protocol import CheckpointInfo, Copied, Event, EventKind, Progress
from lmj_api.spec import JobSpec, LiveMigrationJob
from lmj_api.status import (
    Condition,
    Incident,
    IncidentKind,
    JobStatus,
    Phase,
    RankStatus,
    RecutFollower,
    RecutStatus,
    StandbyState,
    StandbyStatus,
    StateCopy,
)
from lmj_operator.backend.local.lock import RunLock, RunLocked, lock_holder
from lmj_operator.backend.local.store import RunStore, StoreError
from lmj_operator.backend.port import PodEvent
from lmj_operator.cli.ended import exit_code, summary
from lmj_operator.cli.errors import BAD_INPUT, FAILED, INTERRUPTED, CommandError
from lmj_operator.cli.lines import changes, event_line, progress_line
from lmj_operator.cli.load import check_output, read_job
from lmj_operator.cli.main import main as command
from lmj_operator.cli.notices import without_effect
from lmj_operator.cli.reporter import JsonReporter, PlainReporter
from lmj_operator.cli.table import status_lines
from lmj_operator.plan import Plan
from lmj_operator.plan.observe.units import duration, size

pytestmark = pytest.mark.integration

JOB = """
apiVersion: lmj.dev/v1alpha1
kind: LiveMigrationJob
metadata: {name: job}
spec:
  model: {scratch: {}}
  dataset: {source: d.csv, text: [text], label: label}
  output: {path: out}
"""


def lmj(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lmj_operator.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd)


def test_help_and_version() -> None:
    told = lmj("--help")
    assert told.returncode == 0
    assert all(
        name in told.stdout for name in ("run", "validate", "status", "evaluate", "predict", "checkpoints", "export", "report")
    )
    assert lmj("--version").stdout.startswith("lmj ")


def test_help_loads_nothing_heavy() -> None:
    code = "import sys, lmj_operator.cli.main; print([m for m in ('torch', 'aiohttp', 'yaml', 'pydantic') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.strip() == "[]"


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    told = lmj("run", "nothing.yaml", cwd=tmp_path)
    assert (told.returncode, told.stderr) == (2, "error: nothing.yaml: No such file or directory\n")


def test_mistakes_name_the_file_and_the_nearest_field(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.replace("label: label", "labl: label"))
    with pytest.raises(CommandError, match=r"job\.yaml: .*labl.*label") as error:
        read_job(file, [])
    assert error.value.code == BAD_INPUT


def test_sets_are_applied(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    assert read_job(file, ["spec.training.epochs=7"]).spec.training.epochs == 7


def test_an_output_below_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    with pytest.raises(CommandError, match="is a file, not a folder"):
        check_output(read_job(file, [f"spec.output.path={file}/out"]))
    check_output(read_job(file, [f"spec.output.path={tmp_path}/a/b/c"]))
    assert not (tmp_path / "a").exists()


def test_status_of_nothing(tmp_path: Path) -> None:
    told = lmj("status", str(tmp_path))
    assert told.returncode == 1
    assert "no job has run here" in told.stderr


def test_a_node_cannot_be_named_on_one_machine(tmp_path: Path) -> None:
    told = lmj("migrate", str(tmp_path), "--rank", "1", "--to", "node-2")
    assert told.returncode == 2
    assert told.stderr == ("error: --to node-2: a job on this machine has no other node; say -n NAMESPACE for one on a cluster\n")


def spec(**parts: object) -> JobSpec:
    dataset = {"source": "d.csv", "text": ["text"], "label": "label"}
    return JobSpec.model_validate({"model": {"scratch": {}}, "dataset": dataset, "output": {"path": "/o"}, **parts})


def test_fields_without_effect_are_named() -> None:
    assert without_effect(spec()) is None
    assert without_effect(spec(placement={"spread": False}, ttlSecondsAfterFinished=5, network={"policy": "Required"})) == (
        "no effect on one machine: network.policy, placement, ttlSecondsAfterFinished"
    )


@pytest.mark.parametrize(
    ("platform", "told"), [("linux", None), ("darwin", "no effect on one machine: network.encryption (Linux alone)")]
)
def test_encryption_has_an_effect_on_linux(platform: str, told: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", platform)
    assert without_effect(spec(network={"encryption": "Required"})) == told
    assert without_effect(spec(network={"encryption": "Never"})) is None


def test_another_user_s_run_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(path: object, *_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.open", denied)
    monkeypatch.setattr(sys, "argv", ["lmj", "stop", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == FAILED
    assert capsys.readouterr().err == f"error: {tmp_path}/.lmj/lock: Permission denied\n"
    monkeypatch.setattr("os.open", lambda *_: (_ for _ in ()).throw(PermissionError(1, "Operation not permitted")))
    with pytest.raises(PermissionError):  # of no file: that is a mistake of ours, which must not be one line
        command()
    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(StoreError, match=r"status\.json: Permission denied; a run is its owner's alone"):
        RunStore(tmp_path).read_status()


def test_one_lock_a_run(tmp_path: Path) -> None:
    path = tmp_path / "out" / ".lmj" / "lock"
    path.parent.mkdir(parents=True)
    assert lock_holder(path) is None
    with RunLock(path):
        assert lock_holder(path) is not None
        with pytest.raises(RunLocked, match="another lmj run"), RunLock(path):
            pass
    assert lock_holder(path) is None


def test_a_damaged_status_says_what_to_do(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    assert store.read_status() is None
    store.status_file.write_text("{")
    with pytest.raises(StoreError, match=r"status\.json: not a job's status; remove it"):
        store.read_status()


def tiny_job() -> LiveMigrationJob:
    spec = {"model": {"scratch": {}}, "dataset": {"source": "d.csv", "text": ["t"], "label": "l"}, "output": {"path": "/out"}}
    return LiveMigrationJob.model_validate({"metadata": {"name": "tiny"}, "spec": spec})


def test_a_run_keeps_its_identity_until_it_begins_anew(tmp_path: Path) -> None:
    store, job, now = RunStore(tmp_path), tiny_job(), datetime(2026, 1, 1, 12, tzinfo=UTC)
    first = store.identified(job, now, anew=True)
    store.write_job(first)
    assert first.metadata.run.begun == now.timestamp()
    hour = timedelta(hours=1)
    assert store.identified(job, now + hour, anew=False).metadata.run == first.metadata.run
    # A clock that was set back since.
    second = store.identified(job, now - hour, anew=True)
    assert first.metadata.run.precedes(second.metadata.run)
    assert first.metadata.run.short != second.metadata.run.short
    # Its file says whose object it was on a cluster: here it is another run.
    theirs = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": str(uuid4())})})
    assert store.identified(theirs, now, anew=False).metadata.run == first.metadata.run


@pytest.mark.parametrize(
    "text", ["", '{"metadata": 7}', '{"metadata": {"name": "x"}}', '{"metadata": {"name": "x", "uid": "7"}}']
)
def test_a_stored_job_without_an_identity_is_another_run(tmp_path: Path, text: str) -> None:
    store = RunStore(tmp_path)
    store.job_file.write_text(text)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    made = [store.identified(tiny_job(), now, anew=False).metadata.run for _ in range(2)]
    assert made[0].id != made[1].id


def test_the_key_is_private(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.write_key(b"pem")
    assert store.key_file.read_bytes() == b"pem"
    assert store.key_file.stat().st_mode & 0o077 == 0


def test_exit_codes() -> None:
    assert exit_code(JobStatus(phase=Phase.SUCCEEDED)) == 0
    assert exit_code(JobStatus(phase=Phase.SUSPENDED)) == INTERRUPTED
    assert exit_code(JobStatus(phase=Phase.FAILED, message="given up")) == FAILED
    rank = RankStatus(rank=0, state="Exited", exit_code=2, exit_message="no such column")
    assert exit_code(JobStatus(phase=Phase.FAILED, message="no such column", ranks=[rank])) == BAD_INPUT


def test_durations_and_sizes() -> None:
    assert [duration(s) for s in (0, 59.6, 75, 3725)] == ["0:00", "1:00", "1:15", "1:02:05"]
    assert [size(n) for n in (10, 1500, 2_500_000, 3_200_000_000)] == ["10 B", "1.5 KB", "2.5 MB", "3.2 GB"]


INCIDENT = Incident(
    time="2026-01-01T00:00:00.000Z", kind=IncidentKind.HANG, rank=0, pod="j-r0-1", message="no progress", view=1, step=9
)


def test_lines_tell_what_is_new_once() -> None:
    before, after = JobStatus(), JobStatus(incidents=[INCIDENT])
    assert changes(before, after) == ["incident at step 9: no progress"]
    assert changes(after, after) == []
    settled = JobStatus(incidents=[INCIDENT.model_copy(update={"steps_lost": 4, "seconds": 1.25})])
    assert changes(after, settled) == ["recovered in 1.2 s, 4 steps done again"]


def test_a_slow_rank_is_told_of_once_and_shown_while_it_is() -> None:
    rank = RankStatus(rank=1, state="Running", pod="j-r1-1", compute_seconds=0.412, heartbeat_seconds=1.0)
    slow = Condition(
        type="Straggler", status="True", reason="SlowRank", message="rank 1 is slow", last_transition_time="2026-11-21T07:41:35Z"
    )
    before, after = JobStatus(ranks=[rank]), JobStatus(ranks=[rank], conditions=[slow])
    assert changes(before, after) == ["slow: rank 1 is slow"]
    assert changes(after, after) == []
    over = JobStatus(ranks=[rank], conditions=[slow.model_copy(update={"status": "False"})])
    assert changes(after, over) == []
    line = "rank 1: Running, pod j-r1-1, step 0, 0 restarts, 0.412 s of work a step, last progress 1 s before"
    assert line in status_lines(before, 7)
    assert "slow: rank 1 is slow" in status_lines(after, 7)
    assert not any("slow" in told for told in status_lines(over, 7))


def test_plain_progress_is_not_more_than_a_line_in_five_seconds() -> None:
    out, now = io.StringIO(), [0.0]
    reporter = PlainReporter(out, lambda: now[0])
    for step in range(1, 12):
        at = Progress(step=step, steps=20, epoch=0.5, loss=0.25)
        reporter.planned(JobStatus(), Plan(JobStatus(phase=Phase.RUNNING, progress=at), ""))
        now[0] += 1.0
    assert [line.split(",")[0] for line in out.getvalue().splitlines()] == ["step 1/20", "step 6/20", "step 11/20"]
    assert progress_line(at, Phase.RUNNING) == "step 11/20, epoch 0.50, loss 0.2500"


def test_json_is_one_object_a_line() -> None:
    out = io.StringIO()
    reporter = JsonReporter(out)
    reporter.heard(PodEvent("j-r0-1", 0, Event(time=1.0, kind=EventKind.WARNING, message="ä")))
    reporter.planned(JobStatus(), Plan(JobStatus(phase=Phase.RUNNING, incidents=[INCIDENT]), ""))
    result, lines = summary(JobStatus(phase=Phase.SUCCEEDED), Layout.of(spec()), 61.0)
    reporter.result(result, lines)
    assert [json.loads(line)["type"] for line in out.getvalue().splitlines()] == ["event", "incident", "status", "result"]
    assert lines[0].startswith("succeeded after 1:01")


def test_status_lines_say_when_a_run_was_killed() -> None:
    assert any("was killed" in line for line in status_lines(JobStatus(phase=Phase.RUNNING), None))
    assert "run by process 7" in status_lines(JobStatus(phase=Phase.RUNNING), 7)


HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e\nnext"
"""Commands of a terminal, and a second line."""


def test_what_a_status_names_is_no_command_of_a_terminal() -> None:
    """A run's folder may be anybody's, and names are kept as they are written: another name would be another thing's."""
    rank = RankStatus(rank=0, state="Running", pod=HOSTILE, node=HOSTILE)
    saved = CheckpointInfo(name=HOSTILE, step=3)
    incident = INCIDENT.model_copy(update={"time": HOSTILE, "pod": HOSTILE, "message": HOSTILE})
    slow = Condition.model_construct(type="Straggler", status="True", reason="R", message=HOSTILE, last_transition_time=HOSTILE)
    recut = RecutStatus(cut=Cut(stages=2), followers=[RecutFollower(rank=0, serial=1, pod=HOSTILE, message=HOSTILE)])
    status = JobStatus.model_construct(
        message=HOSTILE,
        ranks=[rank],
        standbys=[StandbyStatus(pod=HOSTILE, message=HOSTILE)],
        checkpoint=saved,
        checkpoint_place=HOSTILE,
        incidents=[incident],
        conditions=[slow],
        recut=recut,
    )
    told = [*status_lines(status, None), *changes(JobStatus(), status)]
    for kind, more in (
        (EventKind.CHECKPOINTED, {"checkpoint": saved, "removed": [HOSTILE]}),
        (EventKind.WARNING, {"message": "m"}),
    ):
        line = event_line(PodEvent(HOSTILE, None, Event.model_validate({"time": 0.0, "kind": kind, **more})))
        told += [line] if line is not None else []
    assert len([line for line in told if "owned" in line]) > 8
    assert [line for line in told if not line.isprintable()] == []


def test_standbys_are_told() -> None:
    wanted = [
        StandbyStatus(pod="job-s-1", state=StandbyState.WARM),
        StandbyStatus(pod="job-s-2", message="standby job-s-0 is gone"),
    ]
    told = status_lines(JobStatus(standbys=wanted), None)
    assert "standby: Warm, pod job-s-1" in told
    assert "standby: Wanted, pod job-s-2: standby job-s-0 is gone" in told
    warning = Event(time=0.0, kind=EventKind.WARNING, message="started cold")
    assert event_line(PodEvent("job-s-1", None, warning)) == "warning: job-s-1: started cold"


RECUT = Incident(
    time="2026-01-01T00:00:00.000Z",
    kind=IncidentKind.RECUT,
    rank=0,
    pod="j-r0-1",
    message="recut from 1 stage to 2 stages at step 9",
    view=1,
    step=9,
)


def test_lines_tell_of_another_cut() -> None:
    asked = JobStatus(incidents=[RECUT])
    assert changes(JobStatus(), asked) == ["recut from 1 stage to 2 stages at step 9"]
    paid = {"steps_lost": 0, "seconds": 1.25, "pause_seconds": 0.05, "pause_by": "workers"}
    done = JobStatus(incidents=[RECUT.model_copy(update=paid)])
    assert changes(asked, done) == ["training paused for 0.05 s beyond a step, 0 steps done again"]


def test_status_lines_tell_how_far_another_cut_is() -> None:
    pods = [
        RecutFollower(rank=0, serial=2, pod="j-r0-2", state="InSync", copied=Copied(size=9, in_sync_step=8)),
        RecutFollower(rank=1, serial=1, pod="j-r1-1", state="Starting", message="Unschedulable: no room"),
    ]
    recut = RecutStatus(cut=Cut(stages=2), state="Starting", followers=pods)
    assert status_lines(JobStatus(cut=Cut(stages=1), recut=recut), 7)[-3:] == [
        "recut from 1 stage to 2 stages: Starting",
        "rank 0 of 2 stages: InSync, pod j-r0-2 since step 8",
        "rank 1 of 2 stages: Starting, pod j-r1-1: Unschedulable: no room",
    ]
    over = RecutStatus(cut=Cut(stages=9, layers=[1] * 9), given_up="the model has 4 layers")
    assert status_lines(JobStatus(cut=Cut(stages=1), recut=over), 7)[-1] == (
        "recut from 1 stage to 9 stages of 1, 1, 1, 1, 1, 1, 1, 1, 1 layers: given up, because the model has 4 layers"
    )


@pytest.mark.parametrize(
    ("copies", "place", "lines"),
    [
        ([], "", ["newest checkpoint: step-000000440-v1"]),
        (
            [StateCopy(step=480, memory=2, neighbours=1), StateCopy(step=470, writing=True), StateCopy(step=460, memory=2)],
            "s3://b/x",
            [
                "newest in memory: step 480, of 2 of 2 ranks, of 1 with the next rank too",
                "being written: step 470",
                "newest checkpoint: step-000000440-v1 in s3://b/x",
            ],
        ),
        (
            [StateCopy(step=480, memory=1)],
            "/out",
            ["newest in memory: step 480, of 1 of 2 ranks", "newest checkpoint: step-000000440-v1 in /out"],
        ),
    ],
)
def test_status_lines_say_where_the_newest_state_is(copies: list[StateCopy], place: str, lines: list[str]) -> None:
    ranks = [RankStatus(rank=rank, state="Running") for rank in (0, 1)]
    saved = CheckpointInfo(name="step-000000440-v1", step=440)
    told = status_lines(JobStatus(checkpoint=saved, checkpoint_place=place, copies=copies, ranks=ranks), 7)
    assert [line for line in told if line.startswith(("newest", "being"))] == lines
