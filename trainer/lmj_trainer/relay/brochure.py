"""What the relay has to know of TensorPipe: a listener's first answer says where further connections of the same pipe are to go.

That is the address that it listens at, on the loopback interface of its own pod; in the pod of who connects, another has to stand there. The
answer is found by that address, as text: it comes within the first message, and nothing else that a listener says first has it. Both
addresses have as many characters, so that no length in the message changes. (torch 2.15; TensorPipe's ``PipeImpl``.)
"""

from __future__ import annotations

LONGEST = 16_384
"""Bytes: the first answer has a few hundred."""


class Brochure:
    """The first bytes that come from a listener."""

    def __init__(self, theirs: str, ours: str) -> None:
        """``theirs``: where it says that it listens (``HOST:PORT``). ``ours``: what it is to say. Raises ValueError: one is longer."""
        if len(theirs) != len(ours):
            raise ValueError(f"{theirs} and {ours} are not of one length")
        self._theirs, self._ours = theirs.encode(), ours.encode()
        self._held = b""
        self.done = False
        """It was said: all that comes after is passed on as it is."""

    def passed(self, data: bytes) -> bytes:
        """What may be passed on, now that ``data`` came too. Raises ValueError: it is no listener of TensorPipe."""
        if self.done:
            return data
        self._held += data
        if self._theirs not in self._held:
            if len(self._held) > LONGEST:
                raise ValueError(f"a listener does not say within {LONGEST} bytes that it listens at {self._theirs.decode()}")
            return b""
        self.done = True
        held, self._held = self._held, b""
        return held.replace(self._theirs, self._ours, 1)
