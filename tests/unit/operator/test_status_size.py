"""The largest job's status, and what is told of its views, fit where they are put."""

import json

import pytest
from tests.unit.operator.seen import facts

from lmj_api.protocol import (
    MOST_CHECKPOINTS,
    MOST_LINES,
    AgentState,
    CheckpointInfo,
    Copied,
    Evaluation,
    Exit,
    Progress,
    WorkerState,
)
from lmj_api.status import (
    Condition,
    FollowerStatus,
    Incident,
    IncidentKind,
    JobStatus,
    JoinStatus,
    MoveCause,
    MoveStatus,
    NodeFailures,
    Phase,
    Promotion,
    RankStatus,
    StandbyState,
    StandbyStatus,
)
from lmj_api.topology import Topology
from lmj_api.view import MOST_RANKS, Member, Resume, View
from lmj_operator.backend.agent_client import LONGEST_ANSWER
from lmj_operator.plan.failures import incidents, nodes
from lmj_operator.plan.moves.request import MOST_MOVES
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.lists import NAMED
from lmj_operator.plan.pods.wants import Want
from lmj_operator.plan.report.report import EXIT_BYTES, rank_table
from lmj_trainer.agent.server import LARGEST_BODY

JOB = "j" * 40
"""The longest name."""
NODE = "n" * 63
ADDRESS = "uv://[2001:0db8:85a3:0000:0000:8a2e:0370:7334]:65535"
STAGES = 4
TIME = 1_790_000_000.123456
STAMP = "2026-11-23T14:32:05.123Z"
LINE = "x" * 1000
ONE_MIB = 1 << 20


def pod(rank: int) -> str:
    return f"{JOB}-r{rank}-123"


def view() -> View:
    members = [Member(rank=rank, pod=pod(rank), incarnation=123, address=ADDRESS) for rank in range(MOST_RANKS)]
    reason = "; ".join(f"rank {rank} has a new worker (number 123)" for rank in range(NAMED))
    return View(number=12_345, members=members, resume=Resume(step=1_000_000, told_by=1000), reason=reason)


def rank_status(rank: int) -> RankStatus:
    return RankStatus(
        rank=rank,
        replica=rank // STAGES,
        stage=rank % STAGES,
        pod=pod(rank),
        node=NODE,
        state="Unreachable",
        incarnation=123,
        step=1_000_000,
        heartbeat_seconds=1234.5,
        restarts=123,
        worker_restarts=3,
        exit_code=-11,
        exit_message="x" * (EXIT_BYTES // MOST_RANKS),
    )


def full() -> JobStatus:
    """All that a status can say, of the largest job, at once."""
    copied = Copied(
        done=10**12, size=10**12, gradients=10**12, step=1_000_000, eta_seconds=1234.5, in_sync_step=1_000_000, digest="d" * 32
    )
    labels = 64
    matrix = [[123_456] * labels] * labels
    evaluation = Evaluation(
        split="validation",
        step=1_000_000,
        samples=10**9,
        loss=0.123456789,
        accuracy=0.123456789,
        f1=0.123456789,
        labels=["label of some length"] * labels,
        confusion=matrix,
    )
    incident = Incident(
        time=STAMP,
        kind=IncidentKind.VIEW_DROPPED,
        rank=1023,
        pod=pod(1023),
        peer=pod(1022),
        node=NODE,
        noticed_by="its peers and the operator",
        message=LINE,
        view=12_345,
        step=1_000_000,
        recovery=f"view 12345: {view().reason}; goes on from step 1000000, which all have in memory",
        copied=copied,
    )
    return JobStatus(
        phase=Phase.RECOVERING,
        phase_since=TIME,
        message=2 * LINE,
        conditions=[
            Condition(type="Progressing", status="True", reason="Recovering", message=2 * LINE, last_transition_time=STAMP)
        ]
        * 12,
        view=view(),
        serials={str(rank): 123 for rank in range(MOST_RANKS)},
        made={str(rank): 123 for rank in range(MOST_RANKS)},
        followers=[
            FollowerStatus(
                rank=rank,
                serial=123,
                pod=pod(rank),
                node=NODE,
                to=NODE,
                state="Copying",
                since=TIME,
                copied=copied,
                failures=3,
                not_before=TIME,
            )
            for rank in range(64)
        ],
        joins=[
            JoinStatus(replica=replica, source=1, state="Copying", since=TIME, failures=3, not_before=TIME)
            for replica in range(1, MOST_RANKS // STAGES)
        ],
        moves=[
            MoveStatus(
                rank=rank,
                serial=123,
                node=NODE,
                to=NODE,
                strategy="Checkpoint",
                cause=MoveCause.REQUESTED,
                reason=f"node {NODE} is cordoned",
                since=TIME,
                given_up=given_up,
            )
            for given_up in (None, "no follower was in sync within 600 s (migration.timeoutSeconds): it stays")
            for rank in range(MOST_MOVES)
        ],
        move_request=",".join(map(str, range(MOST_RANKS))),
        standbys=[
            StandbyStatus(pod=f"{JOB}-s-{n}", node=NODE, state=StandbyState.UNREACHABLE, message="x" * 300) for n in range(64)
        ],
        promotions=[Promotion(pod=f"{JOB}-s-{rank}", rank=rank, serial=123) for rank in range(MOST_RANKS)],
        progress=Progress(step=10**6, steps=10**6, epoch=1.5, loss=0.12345, learning_rate=1e-5, grad_norm=1.0, eta_seconds=1e5),
        evaluations=[evaluation] * 3,
        ranks=[rank_status(rank) for rank in range(MOST_RANKS)],
        checkpoint=CheckpointInfo(name="step-000000120-v2-1a2b3c4d", step=10**6, size=10**15, time=TIME),
        nodes=[
            NodeFailures(node=NODE, rank=1023, times=[TIME] * 10, step=10**6, avoided_since=TIME, reason="x" * 200)
            for _ in range(nodes.KEPT)
        ],
        incidents=[incident] * incidents.KEPT_OPEN,
        started=TIME,
    )


def size(value: object) -> int:
    """Bytes of ``value`` in an object of a cluster."""
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


@pytest.mark.parametrize("joining", [0, MOST_RANKS // STAGES - 1], ids=["all train", "all but one join"])
def test_a_status_of_the_largest_job_fits_into_an_object_with_room(joining: int) -> None:
    """With the longest names, and all that a status can say said at once. etcd takes half as much again, for spec and bookkeeping."""
    most = full()
    there = view()
    members = there.members[: MOST_RANKS - STAGES * joining]
    most = most.model_copy(update={"joins": most.joins[:joining], "view": there.model_copy(update={"members": members})})
    told = most.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert size(told) < 0.94 * ONE_MIB, {name: size(value) for name, value in told.items()}


def test_what_is_told_of_the_largest_view_fits_into_a_request_and_an_answer() -> None:
    assert len(view().to_json().encode()) < LARGEST_BODY / 4
    state = AgentState(
        pod=pod(0),
        rank=0,
        started=TIME,
        view=view(),
        worker=WorkerState(exit=Exit(code=1, message=LINE, stderr=[LINE] * MOST_LINES)),
        checkpoints=[CheckpointInfo(name="step-000000120-v2-1a2b3c4d", step=10**6, size=10**15, time=TIME)] * MOST_CHECKPOINTS,
        evaluations=full().evaluations,
    )
    assert len(state.to_json().encode()) < LONGEST_ANSWER


def failed(rank: int, message: str) -> RankFacts:
    return facts(rank, None, known=RankStatus(rank=rank, state="NoPod", exit_message=message))


@pytest.mark.parametrize(("count", "whole"), [(1, True), (30, True), (MOST_RANKS, False)])
def test_messages_of_many_failures_are_told_in_short(count: int, whole: bool) -> None:
    ranks = tuple(failed(rank, LINE if rank < count else "") for rank in range(MOST_RANKS))
    wanted = {rank: Want(1, 1) for rank in range(MOST_RANKS)}
    told = [entry.exit_message or "" for entry in rank_table(Topology(STAGES, 256), ranks, wanted, (), TIME, {})]
    assert (told[0] == LINE) == whole
    assert sum(len(message.encode()) for message in told) <= EXIT_BYTES
    assert told[0].startswith("x" * 20)


def test_what_is_cut_is_text_yet() -> None:
    ranks = tuple(failed(rank, "ü" * 500) for rank in range(MOST_RANKS))
    table = rank_table(Topology(STAGES, 256), ranks, {rank: Want(1, 1) for rank in range(MOST_RANKS)}, (), TIME, {})
    message = table[0].exit_message
    assert message is not None
    assert set(message[:-1]) == {"ü"}
    assert message.endswith("…")
