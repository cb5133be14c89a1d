"""What is said of a model that is to be on the hub."""

from lmj_api.buckets import in_bucket
from lmj_api.protocol import AgentState
from lmj_api.spec import Output


def publication(output: Output, agent: AgentState | None, pending: bool) -> tuple[bool, str, str]:
    """Whether it is there; how far that is, in a word and in a sentence. ``agent``: of rank 0; ``pending``: it may still be pushed."""
    assert output.hub is not None
    where = output.hub.repository
    again = f"lmj push {output.path}{'' if in_bucket(output.path) else ', where that folder is,'} repeats it"
    told = agent.publication if agent is not None else None
    if told is not None and told.url is not None:
        return True, "Pushed", f"{told.url}, commit {told.commit}"
    if told is not None:
        return False, "PushFailed", f"{told.problem}; {again}"
    if pending:
        return False, "Pushing", f"it is being pushed to {where}"
    return False, "NotPushed", f"the pod of rank 0 ended, or was too slow, before the model was on the hub ({where}); {again}"
