"""A command in a pod, with its standard streams: the API server's exec, over a websocket."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient

from lmj_operator.backend.kubernetes.resources import PODS
from lmj_operator.client.volume.trouble import Broken, VolumeError

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
ENDS_INPUT = "v5.channel.k8s.io"
"""It can say that the input has ended; servers before Kubernetes 1.30 know only what was before it."""
PROTOCOLS = (ENDS_INPUT, "v4.channel.k8s.io")
MOST_BYTES = 1 << 17
"""Of one message to the server."""
CONNECT_SECONDS = 30.0


class Exec:
    """One command that runs. It is sent to and received from by one task each."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        self._socket = socket
        self.code: int | None = None
        """Its exit code, once it has ended."""

    async def send(self, data: bytes) -> None:
        """To its standard input; waits while much is on its way. Raises Broken."""
        view = memoryview(data)
        for at in range(0, len(view), MOST_BYTES):
            await self._send(bytes([STDIN]) + view[at : at + MOST_BYTES])

    async def end_input(self) -> bool:
        """Say that there is no more input; False: this server cannot be told."""
        if self._socket.protocol != ENDS_INPUT:
            return False
        await self._send(bytes([CLOSE, STDIN]))
        return True

    async def resize(self, width: int, height: int) -> None:
        """Tell its terminal how large ours is."""
        await self._send(bytes([RESIZE]) + json.dumps({"Width": width, "Height": height}).encode())

    async def received(self) -> AsyncIterator[tuple[int, bytes]]:
        """What it writes, with the stream that it writes to, until it has ended. Raises Broken when the connection ends before it, and
        VolumeError when it could not be started.
        """
        try:
            async for message in self._socket:
                data = message.data
                if message.type is not aiohttp.WSMsgType.BINARY or len(data) < 2:
                    continue
                if data[0] == STATUS:
                    self.code = exit_code(json.loads(data[1:]))
                    return
                yield data[0], data[1:]
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(f"the connection to the pod broke: {error or type(error).__name__}") from error
        raise Broken("the connection to the pod ended")

    async def _send(self, data: bytes) -> None:
        try:
            await self._socket.send_bytes(data)
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(f"the connection to the pod broke: {error or type(error).__name__}") from error


def exit_code(status: dict[str, Any]) -> int:
    """Of the command, from the Status that comes last. Raises VolumeError when there is none, because it was not started."""
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or []:
        if cause.get("reason") == "ExitCode" and str(cause.get("message", "")).isdigit():
            return int(cause["message"])
    why = " ".join(str(status.get("message") or status.get("reason")).split())
    raise VolumeError(f"the command was not started in the pod: {why}")


@asynccontextmanager
async def run_in(
    client: ApiClient, namespace: str, pod: str, container: str, command: Sequence[str], *, tty: bool = False, stderr: bool = True
) -> AsyncIterator[Exec]:
    """``command`` in the container, connected. A terminal has no separate stderr. Raises VolumeError and Broken."""
    query = [
        ("container", container),
        ("stdin", "true"),
        ("stdout", "true"),
        ("stderr", "false" if tty or not stderr else "true"),
    ]
    query += [("tty", "true" if tty else "false"), *(("command", word) for word in command)]
    path = PODS.path(namespace, pod, "exec")
    headers: dict[str, str] = {}
    await client.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
    rest, made = client.rest_client, client.configuration
    if rest.pool_manager is None:
        rest.pool_manager = rest._create_pool_manager()
    options: dict[str, Any] = {"proxy": made.proxy, "proxy_headers": made.proxy_headers} if made.proxy else {}
    if made.tls_server_name:
        options["server_hostname"] = made.tls_server_name
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            socket = await rest.pool_manager.ws_connect(
                f"{made.host}{path}?{urlencode(query)}", headers=headers, protocols=PROTOCOLS, max_msg_size=0, **options
            )
    except aiohttp.WSServerHandshakeError as error:
        raise _refused(error, f"{namespace}/{pod}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Broken(f"no connection to pod {namespace}/{pod}: {error or 'no answer'}") from error
    try:
        yield Exec(socket)
    finally:
        await socket.close()


def _refused(error: aiohttp.WSServerHandshakeError, pod: str) -> VolumeError:
    if error.status == 403:
        return VolumeError(f"pod {pod}: you may run no commands in pods: ask for the rights create and get on pods/exec there")
    if error.status == 401:
        return VolumeError(f"pod {pod}: the cluster does not know you: log in again")
    if error.status == 404:
        return VolumeError(f"pod {pod}: it is gone: somebody deleted it, or its node went; run the same command again")
    return Broken(f"pod {pod}: no command could be run in it: {error.status} {error.message}")
