"""``python -m lmj_trainer relay``: the relay of a pod, started by the agent. It ends when its standard input does."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from lmj_trainer.errors import UserError
from lmj_trainer.limits import allow_files
from lmj_trainer.relay.control import Control
from lmj_trainer.relay.relay import Relay


def main(argv: Sequence[str]) -> int:
    """Run the relay. Raises UserError: it cannot listen."""
    parser = argparse.ArgumentParser(prog="lmj_trainer relay", description=__doc__)
    parser.add_argument("--host", required=True, metavar="IP", help="the pod's address")
    parser.add_argument("--port", type=int, default=0, help="default: any that is free")
    parser.add_argument("--socket", type=Path, required=True, metavar="FILE", help="where the pod's processes give orders")
    parser.add_argument("--silence", type=float, default=0.5, metavar="SECONDS", help="a machine silent for so long is lost")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    allow_files()
    asyncio.run(serve(arguments.host, arguments.port, arguments.socket, arguments.silence))
    return 0


async def serve(host: str, port: int, path: Path, silence: float) -> None:
    """Listen, say where (a line of JSON), and go on until standard input ends."""
    relay = Relay(silence)
    control = Control(relay)
    try:
        await relay.open(host, port)
        await control.open(path)
    except OSError as error:
        raise UserError(f"the relay cannot listen at {host}:{port} and {path}: {error.strerror or error}") from error
    sys.stdout.write(json.dumps({"address": relay.address, "key": relay.identity.key}) + "\n")
    sys.stdout.flush()
    await _end_of_input()
    control.close()
    await relay.close()


async def _end_of_input() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(4096):
        pass
