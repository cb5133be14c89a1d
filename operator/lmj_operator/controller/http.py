"""The operator's own HTTP: ``/healthz``, ``/readyz`` and ``/metrics``."""

from collections.abc import Callable

from aiohttp import web

from lmj_operator.controller.metrics import Metrics


async def listen(host: str, port: int, metrics: Metrics, missing: Callable[[], list[str]]) -> web.AppRunner:
    """Serve until the returned runner is cleaned up. ``missing``: what it waits for before it does anything, and why. Raises OSError."""

    async def healthz(_: web.Request) -> web.Response:
        # The event loop turns. What fails in a job's task, or in a watch of pods or nodes, is tried again there; Kopf's own ends the process.
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        waits = missing()
        return web.Response(status=503, text="\n".join(waits) + "\n") if waits else web.Response(text="ok\n")

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", show_metrics)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
