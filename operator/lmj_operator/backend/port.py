"""The port between the reconciler and the place where pods run."""

from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Protocol

from lmj_api.protocol import Event
from lmj_api.status import JobStatus
from lmj_operator.plan import Action, Observed


class ActionError(Exception):
    """An action could not be carried out now. The next pass looks again and decides again."""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """Something happened in a pod."""

    pod: str
    rank: int | None
    """None: a standby, as far as the backend knows."""
    event: Event | None
    """What its agent told; None: the pod itself changed, look at it."""


class Backend(Protocol):
    """One job in one place."""

    async def observe(self) -> Observed:
        """The job, its stored status and its pods now. Pods whose agent does not answer in time are there without its answer."""
        ...

    def write_status(self, status: JobStatus) -> Awaitable[None]:
        """Store ``status`` durably; the next :meth:`observe` returns it. To be waited for at once."""
        ...

    async def apply(self, action: Action) -> None:
        """Carry out ``action``; a repetition changes nothing. Raises :class:`ActionError` when it cannot be done now."""
        ...

    def events(self) -> AsyncIterator[PodEvent]:
        """What happens, from now on, until the backend is closed. Events may be lost: state is the truth, they are its news."""
        ...

    async def close(self) -> None:
        """Let go of everything that must not outlive this process."""
        ...
