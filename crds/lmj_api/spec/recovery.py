"""What happens when something fails."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from lmj_api.base import Message
from lmj_api.patterns import check_pattern


class RuleAction(StrEnum):
    """What a rule does about an exit. ``Retry``: restarted as usual, be it a user's error. ``Fail``: the job fails at once. ``NextNode``:
    another pod, which avoids the node.
    """

    RETRY = "Retry"
    FAIL = "Fail"
    NEXT_NODE = "NextNode"


class RecoveryRule(Message):
    """What to do about a worker, or a pod, that ended in a certain way. What is set has to match, all of it; at least one is set."""

    exit_codes: Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(min_length=1, max_length=64)] | None = None
    """Exit codes, one of which it has. As Kubernetes and shells count them: a signal is 128 and its number, so SIGKILL is 137. A user's error is 2."""
    log_pattern: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Regular expression (Python's, without groups; letters and digits that a class stands for are those of ASCII, and counts in braces add up to
    50 at most) that is found anywhere in the message of the exit or in one of the last ten lines of stderr; the first 300 characters of each
    count."""
    action: RuleAction
    """What is done."""

    @field_validator("log_pattern")
    @classmethod
    def _pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            check_pattern(pattern)
        return pattern

    @model_validator(mode="after")
    def _says_when(self) -> Self:
        if self.exit_codes is None and self.log_pattern is None:
            raise ValueError("a rule needs exitCodes or logPattern: without either it would match every exit")
        return self


class AvoidNode(Message):
    """When the next pods of a job avoid a node."""

    failures: Annotated[int, Field(ge=1)] = 3
    """Workers and pods that failed there in a row, without a new step in between, before the node is avoided."""
    within_seconds: Annotated[float, Field(gt=0)] = 600.0
    """Only failures of so long count."""
    fallback_seconds: Annotated[float, Field(ge=0)] = 120.0
    """When a pod that avoids nodes has found no other for so long, none is avoided any more: a bad node is better than none."""


class MemorySnapshot(Message):
    """Snapshots of the state in memory."""

    every_steps: Annotated[int, Field(ge=1)]
    """A snapshot after every so many steps. One that is not with the neighbours yet when the next is due takes its place."""


class StragglerAction(StrEnum):
    """What is done about a slow rank. ``Report``: the condition ``Straggler`` says so. ``Move``: it also moves to another node, as on request."""

    REPORT = "Report"
    MOVE = "Move"


class Straggler(Message):
    """When a rank is slow: it computes longer than its peers, which are the ranks of the same stage in other replicas."""

    factor: Annotated[float, Field(ge=1.1, le=100)] = 1.5
    """It computes more than so many times as long as the median of its peers. Each is counted for a shard, so replicas may have different
    numbers of them. It is slow until it is below halfway between 1 and this."""
    seconds: Annotated[float, Field(ge=1)] = 60.0
    """It has done so for so long, without a break."""
    action: StragglerAction = StragglerAction.REPORT
    """What follows."""


class Recovery(Message):
    """The failure ladder's budgets. A user's error (bad data, wrong model) is final at once and uses none."""

    max_restarts: Annotated[int, Field(ge=0)] = 10
    """Restarts, of all ranks together, before the job fails. Pods that the cluster takes away (evicted or preempted, or their node is drained or
    gone) are replaced without being counted."""
    rules: Annotated[list[RecoveryRule], Field(max_length=32)] = []
    """What to do about certain exits; the first that matches decides. None does: a user's error is final, all else is restarted."""
    worker_restarts: Annotated[int, Field(ge=0)] = 3
    """Restarts of a worker in its pod, in a row without a new step, before the pod is replaced."""
    avoid_node: AvoidNode = AvoidNode()
    """When a node is avoided. One machine has no others: there it does nothing."""
    backoff_seconds: Annotated[float, Field(ge=0)] = 1.0
    """Wait before the second restart in a row that brought no new step; doubles with each, up to ``maxBackoffSeconds``. The first is at once. From
    the eleventh on each waits at least 1 s, which doubles too, up to 300 s."""
    max_backoff_seconds: Annotated[float, Field(ge=0)] = 60.0
    """Longest wait before a restart."""
    start_timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """A worker that is not ready to join by then is restarted. Tokenizing the dataset counts."""
    hang_timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """A running job without a committed step or evaluated batch for so long is hung: its workers are restarted."""
    silence_timeout_seconds: Annotated[float, Field(ge=0.2)] = 0.5
    """A peer whose machine acknowledges nothing for so long is lost: nobody sends a reset after a power cut. A busy or stopped process is not
    meant: the machine answers for it. A packet that was lost is repeated after 0.2 s: with hardly more than that one is enough to lose a peer."""
    standby: Annotated[int, Field(ge=0, le=64)] = 0
    """Warm pods without a rank: one takes the place of a pod that is gone at once, with everything imported. Each holds what a rank's pod
    asks for."""
    node_gone_seconds: Annotated[float, Field(ge=0)] = 60.0
    """Pods on a node that is gone or not ready for so long are removed by force, because nobody is left there to end them. One machine has no such nodes."""
    hot_standby: bool = False
    """Keep a second pod for each rank, which takes every step with it: a rank whose pod or node is lost costs no step. It takes as much memory
    as the rank, and its gradients are sent once more with every step."""
    memory_snapshot: MemorySnapshot | None = None
    """Snapshots of each rank's weights and moments, the last two in its own memory and in the next rank's: when a pod is lost, all go back to the
    newest that all have, and no disk is read. Takes 48 bytes of a pod's memory for each parameter of a stage. None: the newest checkpoint it is."""
    straggler: Straggler | None = None
    """Ranks that compute slower than their peers in other replicas, for which all others wait in each step. With one replica there are no peers,
    and nobody is slow. None: nobody compares."""
