"""What a follower needs of its line to the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from lmj_api.protocol import EventKind


class Control(Protocol):
    """Events out, orders in."""

    @property
    def ordered(self) -> bool:
        """Whether an order waits."""

    def emit(self, kind: EventKind, message: str = "", **details: Any) -> None:
        """Tell the agent."""
