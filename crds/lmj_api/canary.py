"""The canary of a pod: a port that its job's NetworkPolicy does not let the operator reach. Who gets its line knows that nobody enforces the policy."""

from typing import Final

PORT: Final = 9462
VARIABLE: Final = "LMJ_CANARY_PORT"
"""Tells an agent to listen there. No option of its command line: an agent of an earlier image, which may be the one of a job's next pod, would
end at one that it does not know."""
LINE: Final = b"lmj canary\n"
"""What everybody gets who connects. A proxy that takes connections for others does not say it."""
