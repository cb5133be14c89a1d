"""Where the processes of a pod tell its relay what they want of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from pydantic import ValidationError

from lmj_trainer.relay.relay import Relay
from lmj_trainer.relay.words import LONGEST_LINE, Done, Order, OrderKind


class Control:
    """A socket in a folder that is the pod's alone. What was wanted over a connection goes with it."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def open(self, path: Path) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_unix_server(self._serve, path, limit=LONGEST_LINE)
        os.chmod(path, 0o600)

    def close(self) -> None:
        """Listen no more."""
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        who = object()
        try:
            # A longer line is no order. The loop cancels this when it ends, and would tell of it.
            with contextlib.suppress(ConnectionError, ValueError, asyncio.CancelledError):
                while line := await reader.readline():
                    writer.write((await self._done(who, line)).to_json().encode() + b"\n")
                    await writer.drain()
        finally:
            self._relay.leave(who)
            writer.close()

    async def _done(self, who: object, line: bytes) -> Done:
        try:
            return await self._do(who, Order.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            return Done(problem=f"not an order: {first['msg']}")
        except (ValueError, OSError) as error:
            return Done(problem=str(error) or type(error).__name__)

    async def _do(self, who: object, order: Order) -> Done:
        relay = self._relay
        match order.kind:
            case OrderKind.PUBLISH if order.port:
                return Done(address=relay.publish(who, order.port))
            case OrderKind.REACH if order.address is not None:
                return Done(address=await relay.reach(who, order.address))
            case OrderKind.FORGET if order.address is not None:
                relay.forget(who, order.address)
            case OrderKind.ADMIT:
                relay.admit(who, order.addresses)
            case _:
                return Done(problem=f"{order.kind} without what it is for")
        return Done()
