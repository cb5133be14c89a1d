"""The largest status that there can be: of the most ranks, with the longest names, all that can be said said at once."""

import json

from lmj_api.protocol import CheckpointInfo, Copied, Evaluation, Progress
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
    StateCopy,
)
from lmj_api.view import MOST_RANKS, Member, Resume, View
from lmj_operator.plan.failures import incidents, nodes
from lmj_operator.plan.moves.request import MOST_MOVES
from lmj_operator.plan.observe.lists import NAMED
from lmj_operator.plan.report.copies import MOST
from lmj_operator.plan.report.report import EXIT_BYTES

JOB = "j" * 40
"""The longest name."""
NODE = "n" * 63
ADDRESS = "uv://[2001:0db8:85a3:0000:0000:8a2e:0370:7334]:65535"
STAGES = 4
TIME = 1_790_000_000.123456
STAMP = "2026-11-23T14:32:05.123Z"
LINE = "x" * 1000


def pod(rank: int) -> str:
    return f"{JOB}-r{rank}-123"


def view(ranks: int = MOST_RANKS) -> View:
    members = [Member(rank=rank, pod=pod(rank), incarnation=123, address=ADDRESS) for rank in range(ranks)]
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


def full(joining: int = 0) -> JobStatus:
    """With ``joining`` replicas that are not in the view yet."""
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
        view=view(MOST_RANKS - STAGES * joining),
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
            for replica in range(MOST_RANKS // STAGES - joining, MOST_RANKS // STAGES)
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
        checkpoint_place=LINE,
        copies=[StateCopy(step=10**6, memory=MOST_RANKS, neighbours=MOST_RANKS, writing=True, checkpoint="n" * 255)] * MOST,
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


def stored(status: JobStatus) -> dict[str, object]:
    """As it is stored in one."""
    told: dict[str, object] = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return told
