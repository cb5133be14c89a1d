"""By which the operator knows that an agent is its pod's: the kubelet gives the pod a token, which the API server has signed."""

from lmj_api import names
from lmj_api.base import Message

AUDIENCE = f"agents.{names.GROUP}"
"""For whom the tokens are. The API server takes none of them: they give no right to anybody."""
LONGEST = 16 << 10
"""Characters of a token; one has some 1,200."""


class PodToken(Message):
    """What an agent answers to the operator, on a connection that ends at the agent's own certificate."""

    token: str
    """A JSON Web Token, for :data:`AUDIENCE`; it names the pod by its uid."""
