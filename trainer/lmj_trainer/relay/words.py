"""What the processes of a pod ask of its relay, over a socket in a folder that is the pod's alone: JSON, a line each way."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from lmj_api.base import Message
from lmj_api.bounds import Line, Name
from lmj_api.view import MOST_RANKS

LONGEST_LINE = 1 << 20
"""Bytes; an order with the addresses of 1,024 ranks has some 100 KB."""


class OrderKind(StrEnum):
    """What is to be done. It is so until whoever ordered it closes the connection, or orders something else."""

    PUBLISH = "publish"
    """Let others connect to ``port``; the answer has the address under which they do."""
    REACH = "reach"
    """Have a way to the one at ``address``; the answer has where it begins, on the loopback interface."""
    FORGET = "forget"
    """The way to ``address`` is needed no more; connections that were made by it go on."""
    ADMIT = "admit"
    """Let those at ``addresses`` connect, and nobody else because of this connection."""


class Order(Message):
    """A line to the relay."""

    kind: OrderKind
    """What is to be done."""
    port: Annotated[int, Field(ge=0, lt=1 << 16)] = 0
    """``publish``: where the one who orders it listens on the loopback interface."""
    address: Name | None = None
    """``reach``, ``forget``: whose."""
    addresses: Annotated[tuple[Name, ...], Field(max_length=4 * MOST_RANKS)] = ()
    """``admit``: whose."""


class Done(Message):
    """The answer to an order."""

    address: Name | None = None
    """``publish``, ``reach``."""
    problem: Line | None = None
    """Why it was not done; None: it was."""
