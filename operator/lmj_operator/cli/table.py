"""A job's status as lines for people."""

from lmj_api.bounds import printable
from lmj_api.cut import Cut
from lmj_api.status import JobStatus, Phase, RecutStatus
from lmj_operator.cli.lines import evaluation_line, progress_line
from lmj_operator.plan.failures.incidents import cost, proof
from lmj_operator.plan.report.conditions import STRAGGLER, copied
from lmj_operator.plan.report.phases import AT_REST


def status_lines(status: JobStatus, process: int | None) -> list[str]:
    """``status``, told beside whether a command (its ``process`` id) runs the job now. Whoever wrote it may have named things as it likes."""
    lines = [f"{status.phase.value}: {status.message}"]
    if process is not None:
        lines.append(f"run by process {process}")
    elif status.phase not in AT_REST:
        lines.append("no command runs it now: the last one was killed; lmj run goes on from the newest checkpoint")
    if status.progress is not None:
        lines.append(progress_line(status.progress, Phase.RUNNING))
    lines += _copies(status)
    lines += [evaluation_line(e) for e in status.evaluations]
    parted = any(rank.replica for rank in status.ranks)
    if parted:
        wanted = max(status.wanted_replicas, status.replicas)
        lines.append(f"{status.replicas} of {wanted} replicas train")
    for join in status.joins:
        source = f", follows replica {join.source}" if join.source is not None else ""
        lines.append(f"replica {join.replica}: {join.state}{source}")
    for rank in status.ranks:
        works = f", {rank.compute_seconds:g} s of work a step" if rank.compute_seconds is not None else ""
        heard = f", last progress {rank.heartbeat_seconds:.0f} s before" if rank.heartbeat_seconds is not None else ""
        failed = f"; last failure: {rank.exit_message}" if rank.exit_message else ""
        place = f" (replica {rank.replica}, stage {rank.stage})" if parted else ""
        at = f"{rank.state}, pod {rank.pod or '-'}, step {rank.step}, {rank.restarts} restarts"
        lines.append(f"rank {rank.rank}{place}: {at}{works}{heard}{failed}")
    lines += [f"slow: {c.message}" for c in status.conditions if c.type == STRAGGLER and c.status == "True"]
    for standby in status.standbys:
        why = f": {standby.message}" if standby.message else ""
        lines.append(f"standby: {standby.state.value}, pod {standby.pod}{why}")
    for follower in status.followers:
        lines.append(f"rank {follower.rank}: {follower.state} follower, pod {follower.pod}{copied(follower)}")
    if status.recut is not None:
        lines += _recut(status.recut, status.cut)
    for incident in status.incidents:
        told = [part for part in (cost(incident), proof(incident)) if part is not None]
        paid = f" ({'; '.join(told)})" if told else ""
        lines.append(f"{incident.time} {incident.kind} at step {incident.step}: {incident.message}{paid}")
    return [printable(line) for line in lines]


def _copies(status: JobStatus) -> list[str]:
    """Where the newest state is of each kind of place."""
    memory = next((copy for copy in status.copies if copy.memory or copy.neighbours), None)
    writing = next((copy for copy in status.copies if copy.writing), None)
    lines = []
    if memory is not None:
        beside = f", of {memory.neighbours} with the next rank too" if memory.neighbours else ""
        lines.append(f"newest in memory: step {memory.step}, of {memory.memory} of {len(status.ranks)} ranks{beside}")
    if writing is not None:
        lines.append(f"being written: step {writing.step}")
    if status.checkpoint is not None:
        place = f" in {status.checkpoint_place}" if status.checkpoint_place else ""
        lines.append(f"newest checkpoint: {status.checkpoint.name}{place}")
    return lines


def _recut(recut: RecutStatus, now: Cut | None) -> list[str]:
    change = f"recut{f' from {now}' if now is not None else ''} to {recut.cut}"
    if recut.given_up is not None:
        return [f"{change}: given up, because {recut.given_up}"]
    lines = [f"{change}: {recut.state}"]
    for pod in recut.followers:
        why = f": {pod.message}" if pod.message is not None else ""
        lines.append(f"rank {pod.rank} of {recut.cut}: {pod.state}, pod {pod.pod}{copied(pod)}{why}")
    return lines
