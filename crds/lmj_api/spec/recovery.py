"""What happens when something fails."""

from typing import Annotated

from pydantic import Field

from lmj_api.base import Message


class Recovery(Message):
    """The failure ladder's budgets. A user's error (bad data, wrong model) is final at once and uses none."""

    max_restarts: Annotated[int, Field(ge=0)] = 10
    """Restarts, of all ranks together, before the job fails."""
    backoff_seconds: Annotated[float, Field(ge=0)] = 1.0
    """Wait before the second restart in a row that brought no new step; doubles with each, up to ``maxBackoffSeconds``. The first is at once."""
    max_backoff_seconds: Annotated[float, Field(ge=0)] = 60.0
    """Longest wait before a restart."""
    start_timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """A worker that is not ready to join by then is restarted. Tokenizing the dataset counts."""
    hang_timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """A running job without a committed step or evaluated batch for so long is hung: its workers are restarted."""
    silence_timeout_seconds: Annotated[float, Field(ge=0.2)] = 1.0
    """A peer whose machine acknowledges nothing for so long is lost: nobody sends a reset after a power cut. A busy or stopped process is not
    meant: the machine answers for it."""
    standby: Annotated[int, Field(ge=0, le=64)] = 0
    """Warm pods without a rank: one takes the place of a pod that is gone at once, with everything imported. Each holds what a rank's pod
    asks for."""
    node_gone_seconds: Annotated[float, Field(ge=0)] = 60.0
    """Pods on a node that is gone or not ready for so long are removed by force, for nobody is left there to end them. One machine has no such nodes."""
