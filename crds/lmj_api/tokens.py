"""Under which names credentials of a job's references reach its pods: the operator sets them, and the agent gives each to one process alone."""

from lmj_api.spec.output import Output
from lmj_api.spec.secret import SecretKey

PREFIX = "LMJ_TOKEN_"
HUB = f"{PREFIX}HUB"
"""The variable with the credential of ``output.hub``."""

STORE = f"{PREFIX}STORE_"
"""Before the names of the variables that say where that is which leads to object storage (``checkpoint.secretName``)."""
STORE_FOLDER = f"{STORE}FOLDER"
"""The variable with the folder that has a file for each key of that Secret. Files, because they are replaced when the Secret changes."""
STORE_SECRET = f"{STORE}SECRET"
"""The variable with the Secret's name, for people."""

METRICS = f"{PREFIX}METRICS"
"""The variable with what a scraper of a pod's /metrics is to send as a bearer token: the template of the job may set it."""


def tracker_token(number: int) -> str:
    """The variable with the credential of tracker ``number`` of ``output.trackers``, from 0."""
    return f"{PREFIX}TRACKER_{number}"


def references(output: Output) -> dict[str, SecretKey]:
    """Variables and what each is to have."""
    tokens = {tracker_token(number): tracker.token for number, tracker in enumerate(output.trackers)}
    if output.hub is not None:
        tokens[HUB] = output.hub.token
    return {name: token for name, token in tokens.items() if token is not None}
