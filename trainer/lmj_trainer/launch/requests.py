"""What a launcher asks of its starter, as bytes on a socket: each message is its length and an object of JSON."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

HEAD = struct.Struct("!I")
"""Before each message: its length in bytes."""


@dataclass(frozen=True)
class Start:
    """Have a process."""

    number: int
    """By which it is told of; each is used once."""
    argv: Sequence[str]
    """What would follow ``torchrun`` and its options."""
    cwd: str
    environment: Mapping[str, str]
    cores: Sequence[int]
    """Processors that it may run on; none: any."""


def frame(message: Mapping[str, Any]) -> bytes:
    """``message`` as it is sent."""
    data = json.dumps(message).encode()
    return HEAD.pack(len(data)) + data


def asked_to_start(start: Start) -> bytes:
    """The message that asks for it. The answer has ``pid``, or ``ended`` at once."""
    return frame({"start": asdict(start)})


def asked_to_signal(number: int, which: int) -> bytes:
    """The message that has signal ``which`` sent to process ``number``; nothing to one that has ended."""
    return frame({"signal": int(which), "to": number})


def asked_to_clear() -> bytes:
    """The message that has all that is left of processes ended. It is answered (``cleared``) when there is nothing any more."""
    return frame({"clear": True})


def take_messages(data: bytearray) -> list[Any]:
    """Takes the whole messages out of ``data``."""
    found = []
    while len(data) >= HEAD.size and len(data) >= (end := HEAD.size + HEAD.unpack_from(data)[0]):
        found.append(json.loads(data[HEAD.size : end]))
        del data[:end]
    return found
