"""Times that an agent tells, by the own clock: each machine has another, which may be hours ahead or behind."""

from lmj_api.protocol import AgentState


def by_own_clock(agent: AgentState, age: float, now: float) -> AgentState:
    """``agent``, which was answered ``age`` seconds before ``now``, with all times as this process's clock had them. None is after ``now``."""
    if agent.clock is None:
        return agent  # an agent of an earlier version
    shift = now - age - agent.clock

    def own(time: float) -> float:
        return min(max(time + shift, 0.0), now) if time else 0.0

    worker, trouble, notice = agent.worker, agent.checkpoint_trouble, agent.notice
    return agent.model_copy(
        update={
            "started": own(agent.started),
            "clock": now,
            "worker": worker.model_copy(update={"since": own(worker.since), "heartbeat": own(worker.heartbeat)}),
            "checkpoint_trouble": trouble.model_copy(update={"since": own(trouble.since)}) if trouble is not None else None,
            # The one time that is to come.
            "notice": notice.model_copy(update={"at": notice.at + shift})
            if notice is not None and notice.at is not None
            else notice,
        }
    )
