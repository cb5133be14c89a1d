"""What a pass changes of the stored status, besides what it saw."""

from typing import TypedDict

from lmj_api.status import (
    FollowerStatus,
    Incident,
    JoinStatus,
    MoveStatus,
    NodeFailures,
    Promotion,
    RecutStatus,
    StandbyStatus,
    StragglerStatus,
)


class Changes(TypedDict, total=False):
    """Fields of :class:`~lmj_api.status.JobStatus`, with their types; one that is not there stays as it is."""

    incidents: list[Incident]
    nodes: list[NodeFailures]
    restarts: int
    restarts_before: int
    disruptions: int
    disruptions_without_progress: int
    restarts_without_progress: int
    restart_step: int
    not_before: float | None
    look_since: float | None
    serials: dict[str, int]
    made: dict[str, int]
    promotions: list[Promotion]
    standbys: list[StandbyStatus]
    warm_standbys: int
    followers: list[FollowerStatus]
    joins: list[JoinStatus]
    recut: RecutStatus | None
    moves: list[MoveStatus]
    stragglers: list[StragglerStatus]
    move_request: str | None
    move_refused: str | None
    migrations: int
    started: float | None
    finished: float | None
