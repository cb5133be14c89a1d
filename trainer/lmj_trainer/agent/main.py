"""``python -m lmj_trainer agent``: starts the agent, and ends it well."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic import ValidationError

from lmj_api.protocol import CheckpointInfo
from lmj_api.run import Run
from lmj_api.signed import digest_of
from lmj_api.spec import LiveMigrationJob, Training
from lmj_api.spec.migration import Cloud as CloudName
from lmj_api.tokens import METRICS
from lmj_api.topology import FIRST
from lmj_trainer import linux
from lmj_trainer.agent import lifeline, standby
from lmj_trainer.agent.canary import open_canary
from lmj_trainer.agent.children import Children
from lmj_trainer.agent.deliveries import Deliveries, of_store, without_tokens
from lmj_trainer.agent.environment import default_interface, script_environment, worker_environment
from lmj_trainer.agent.kind import WorkerKind, worker_kind
from lmj_trainer.agent.launch import Program
from lmj_trainer.agent.launcher import Launcher
from lmj_trainer.agent.memory import open_memory
from lmj_trainer.agent.memory_folder import VARIABLE as MEMORY_VARIABLE
from lmj_trainer.agent.memory_folder import memory_folder
from lmj_trainer.agent.starting import start_push, start_tracker
from lmj_trainer.agent.supervisor import Supervisor
from lmj_trainer.checkpoint.fence import declare_over
from lmj_trainer.checkpoint.identity import state_digest
from lmj_trainer.checkpoint.scan import scan, scan_in_thread
from lmj_trainer.durable import write_atomically
from lmj_trainer.errors import UserError
from lmj_trainer.interfaces import interface_of
from lmj_trainer.own.source import settled
from lmj_trainer.store.port import Ref
from lmj_trainer.store.registry import checkpoints_of

if TYPE_CHECKING:
    import ssl

    from aiohttp import web

log = logging.getLogger(__name__)

LONGEST_PATH = 107
"""Bytes of a Unix socket's."""
RETRY_SECONDS = 1.0
"""Pause before a checkpoint folder that could not be listed is tried again."""


def main(argv: Sequence[str]) -> int:
    """Run the agent until SIGTERM or SIGINT. Raises UserError for a wrong argument."""
    arguments = parser().parse_args(argv)
    return asyncio.run(serve(arguments, _job(arguments.job, arguments.rank)))


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    result = argparse.ArgumentParser(prog="lmj_trainer agent", description="Supervise the worker of one rank.")
    result.add_argument("--job", type=Path, required=True, metavar="FILE", help="the LiveMigrationJob, JSON, all paths absolute")
    purpose = result.add_mutually_exclusive_group(required=True)
    purpose.add_argument("--rank", type=int, help="the rank that this pod is for")
    purpose.add_argument(
        "--standby", action="store_true", help="be ready to become any rank: the first worker's start says which"
    )
    result.add_argument("--pod", required=True, metavar="NAME", help="name of this pod")
    result.add_argument(
        "--dir", type=Path, required=True, metavar="DIR", help="this pod's own folder; agent.json is written there"
    )
    result.add_argument("--listen", type=address, default=("127.0.0.1", 0), metavar="HOST:PORT", help="default: 127.0.0.1:0")
    result.add_argument("--uid", required=True, help="this pod's uid: requests are signed for it alone")
    trust = "a public key whose owner may command this agent; may be repeated"
    result.add_argument("--trust", action="append", required=True, metavar="KEY", help=trust)
    result.add_argument("--interface", metavar="NAME", help="network interface for RPC (default: lo when listening on loopback)")
    result.add_argument("--address", metavar="IP", help="this pod's address: RPC listens on the interface that has it")
    result.add_argument(
        "--relay",
        type=int,
        metavar="PORT",
        help="encrypt what workers say to each other: other pods reach this one at PORT of --address, and RPC listens on loopback",
    )
    result.add_argument(
        "--token",
        type=Path,
        metavar="FILE",
        help="the pod's own token: serve inside TLS, and let the operator see by it whose certificate this is (default: in the clear)",
    )
    result.add_argument("--grace", type=float, default=30.0, metavar="SECONDS", help="time to leave after SIGTERM (default: 30)")
    result.add_argument("--cold", action="store_true", help="keep no process to fork workers from: less memory, slower restarts")
    result.add_argument(
        "--behind",
        action="store_true",
        help="others train on this machine and wait for nothing here: start in what they leave over",
    )
    result.add_argument("--lifeline", action="store_true", help="stdin is a pipe held by the parent: leave at once when it ends")
    return result


def address(text: str) -> tuple[str, int]:
    """``HOST:PORT`` (``[::]:80`` for IPv6) as a pair. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def serve(arguments: argparse.Namespace, job: LiveMigrationJob) -> int:
    """Listen, supervise, and leave when told to."""
    if arguments.behind:
        linux.stay_behind()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    kind = worker_kind(job.spec)
    with contextlib.ExitStack() as memories:
        return await _serve(arguments, job, stop, _environment(arguments, job, kind, memories))


async def _serve(
    arguments: argparse.Namespace, job: LiveMigrationJob, stop: asyncio.Event, environment: Mapping[str, str]
) -> int:
    loop, kind = asyncio.get_running_loop(), worker_kind(job.spec)
    children = Children(adopts=not arguments.cold and linux.adopt_orphans())
    if children.adopts:
        loop.add_signal_handler(signal.SIGCHLD, children.sweep)
    launcher = Launcher(
        program(kind, arguments, environment, lambda: supervisor.state.rank),
        children,
        patience=job.spec.recovery.start_timeout_seconds / 2,
    )
    inherited = {option: open_memory(arguments.dir) for option in kind.memories}
    supervisor = Supervisor(arguments.rank, arguments.pod, launcher, inherited)

    def stop_at_once() -> None:
        supervisor.drain()
        stop.set()

    # The owner of the job wants nothing more of this pod; the sender of SIGTERM may not know that a rank is in it.
    loop.add_signal_handler(signal.SIGINT, stop_at_once)
    if arguments.lifeline:
        lifeline.watch(lambda: supervisor.kill("its agent's parent is gone"))
    launcher.keep_server(supervisor.warn)  # before all else: its imports are the longest part of a start
    relaying = _relaying(arguments, job, supervisor, children)
    try:
        runner = await _listen(supervisor, arguments, job)
    except BaseException:
        for task in relaying:
            task.cancel()
        await asyncio.gather(*relaying, return_exceptions=True)
        await launcher.close()
        raise
    try:
        _announce(arguments.dir, arguments.listen[0], int(runner.addresses[0][1]))
        scanning = asyncio.create_task(begin(supervisor, job, kind))
        deliveries = Deliveries(
            job,
            supervisor,
            lambda number: start_tracker(job, arguments.job, number, children),
            lambda: start_push(arguments.job, children),
        )
        delivering = asyncio.create_task(deliveries.run())
        stopping = asyncio.create_task(stop.wait())
        beside = [scanning, delivering, *_watching(supervisor, job.spec.migration.spot_notices)]
        # An agent that cannot look, or cannot watch its worker, is of no use: its error ends it, and the pod is replaced.
        await _until(stopping, *beside, *relaying, supervisor.failure)
        for task in beside:
            task.cancel()
        # A gigabyte of memory goes, beside a pod of this machine that takes its rank's next step.
        await supervisor.stop(arguments.grace, linux.give_way)
        await deliveries.close()
    finally:
        supervisor.kill("its agent failed")  # nothing is left of it when all went well
        for task in relaying:  # the worker has needed it until now
            task.cancel()
        await asyncio.gather(*relaying, return_exceptions=True)  # what failed was raised above
        await launcher.close()
        await runner.cleanup()
    return 0


def _watching(supervisor: Supervisor, name: CloudName | None) -> list[asyncio.Task[None]]:
    """What asks cloud ``name`` of this machine."""
    if name is None:
        return []
    # Imported here, beside the fork server's imports and not before them.
    from lmj_trainer.agent.notices.cloud import CLOUDS
    from lmj_trainer.agent.notices.service import ADDRESS
    from lmj_trainer.agent.notices.watch import VARIABLE, watch

    address = os.environ.get(VARIABLE, ADDRESS)
    return [asyncio.create_task(watch(CLOUDS[name](), address, supervisor.noticed, supervisor.warn))]


def _relaying(
    arguments: argparse.Namespace, job: LiveMigrationJob, supervisor: Supervisor, children: Children
) -> list[asyncio.Task[None]]:
    """What keeps the pod's relay, where it is to have one."""
    if arguments.relay is None:
        return []
    # Imported here, beside the fork server's imports and not before them.
    from lmj_trainer.agent.relay import keep_relay, relay_command

    arguments.dir.mkdir(parents=True, exist_ok=True)
    path = relay_socket(arguments)
    command = relay_command(arguments.address, arguments.relay, path, job.spec.recovery.silence_timeout_seconds)
    return [asyncio.create_task(keep_relay(command, path, supervisor.peers, children, supervisor.warn))]


def relay_socket(arguments: argparse.Namespace) -> Path:
    """Where the pod's relay takes orders."""
    folder: Path = arguments.dir
    return folder / "relay"


def _environment(
    arguments: argparse.Namespace, job: LiveMigrationJob, kind: WorkerKind, memories: contextlib.ExitStack
) -> dict[str, str]:
    """All variables of a worker. ``memories``: what is removed with this agent. Raises UserError for an address that
    no interface has, or for none where one is needed.
    """
    address, base = arguments.address, without_tokens(os.environ)
    interface = arguments.interface or (interface_of(address) if address else default_interface(arguments.listen[0]))
    if arguments.relay is not None and not kind.scripted:
        if address is None:
            raise UserError("--relay needs --address: where other pods reach this one")
        if len(os.fsencode(path := relay_socket(arguments))) > LONGEST_PATH:
            raise UserError(f"{path}: a socket's path has at most {LONGEST_PATH} bytes: give --dir a shorter one")
        interface = default_interface("localhost")  # nobody but the relay reaches it
    if kind.scripted:
        kept = job.spec.command is not None and job.spec.command.memory is not None
        memory = {MEMORY_VARIABLE: str(memories.enter_context(memory_folder()))} if kept else {}
        return {**script_environment(base, interface), **memory}
    # It writes checkpoints, and reads them.
    return worker_environment({**base, **of_store(os.environ)}, job.spec.training.computing_threads, interface)


async def _listen(supervisor: Supervisor, arguments: argparse.Namespace, job: LiveMigrationJob) -> "web.AppRunner":
    """Serve the interface. Raises UserError."""
    # Imported here, beside the fork server's imports and not before them.
    from aiohttp import web

    from lmj_trainer.agent.gate import Gate
    from lmj_trainer.agent.server import make_app

    host, port = arguments.listen
    tls, certificate = (None, "") if arguments.token is None else _certified()
    gate = Gate(job.metadata.uid or "", arguments.uid, arguments.trust, certificate=certificate)
    scraper = os.environ.get(METRICS, "").strip() or None
    app = make_app(supervisor, gate, job.spec.topology, scraper, arguments.token)
    # Before anybody can ask whether it listens.
    canary = open_canary(host, supervisor.warn)
    if canary is not None:
        supervisor.guarded()

        async def close(_: web.Application) -> None:
            canary.close()

        app.on_cleanup.append(close)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
    except OSError as error:
        await runner.cleanup()
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return runner


def _certified() -> "tuple[ssl.SSLContext, str]":
    """What the agent serves TLS by, with a key that is made now and never leaves its memory, and the digest of its certificate."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from lmj_trainer.certificate import certified

    tls, certificate = certified(Ed25519PrivateKey.generate(), "lmj agent")
    return tls, digest_of(certificate)


async def _until(stopping: asyncio.Task[bool], *others: asyncio.Future[None]) -> None:
    """Wait for ``stopping``; raise the error of any of ``others`` that fails before."""
    waiting: set[asyncio.Future[Any]] = {stopping, *others}
    while not stopping.done():
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()


async def begin(supervisor: Supervisor, job: LiveMigrationJob, kind: WorkerKind) -> None:
    """What an agent does unasked: a standby gets warm and waits for its rank; then the leader's looks through the checkpoints.

    It looks again when it is told to, because it does not hear what others save. One agent reads and digests them: where a view
    starts from is told to all.
    """
    if supervisor.state.rank is None:
        await standby.wait(supervisor)
    if not kind.saves:
        await look_nowhere(supervisor)
    if supervisor.state.rank != FIRST:
        supervisor.found([])
        return
    try:
        spec = settled(job).spec
        place = checkpoints_of(spec)
    except UserError:  # the worker says it
        supervisor.found([])
        return
    await look(supervisor, place, state_digest(spec), job.metadata.run, spec.training)


async def look(supervisor: Supervisor, root: Ref, digest: str, run: Run, training: Training | None = None) -> None:
    """Look through the checkpoints in ``root``, at once and whenever that is asked for; for ever."""
    number: int = 0
    names: tuple[str, ...] = ()
    while True:
        known = {c.name: c.size for c in supervisor.state.checkpoints if c.problem is None}
        look_now = partial(_look, root, run, number, partial(scan, root, digest, training, names, known))
        supervisor.found(await _look_once(supervisor, root, look_now), number)
        number, names = await supervisor.looks.next()


async def look_nowhere(supervisor: Supervisor) -> NoReturn:
    """Answer at once whenever a look is asked for; for ever: there are no checkpoints that anybody here could read."""
    number: int = 0
    while True:
        supervisor.found([], number)
        number, _ = await supervisor.looks.next()


def _look(root: Ref, run: Run, number: int, look: Callable[[], list[CheckpointInfo]]) -> list[CheckpointInfo]:
    """What ``look`` finds; who may write on in view ``number``, or before, can know from now on that it is over. Raises OSError."""
    if number > 0:
        try:
            declare_over(root, run, number)
        except OSError as error:
            # Where that cannot be written, nobody saves checkpoints either.
            log.warning("view %d is not declared over in %s: %s", number, root, error)
    return look()


async def _look_once(supervisor: Supervisor, root: Ref, look: Callable[[], list[CheckpointInfo]]) -> list[CheckpointInfo]:
    """What ``look`` finds. While it is impossible to look nothing is known, which is not the same as there being none."""
    told = ""
    while True:
        try:
            return await scan_in_thread(look)
        except OSError as error:
            message = f"{root} cannot be looked through for checkpoints, trying again: {error}"
            if message != told:
                supervisor.warn(message)
                told = message
            await asyncio.sleep(RETRY_SECONDS)


def program(
    kind: WorkerKind, arguments: argparse.Namespace, environment: Mapping[str, str], rank: Callable[[], int | None]
) -> Program:
    """What is run as a worker, of the rank that the pod has by then."""
    python = [sys.executable, "-m", "lmj_trainer"]

    def worker_arguments(incarnation: int) -> list[str]:
        number = rank() if arguments.rank is None else arguments.rank
        own = {} if number is None else {"rank": number}
        behind = {} if arguments.relay is None or kind.scripted else {"relay": relay_socket(arguments)}
        options = {"job": arguments.job, **own, "pod": arguments.pod, "incarnation": incarnation, **behind}
        return [str(part) for name, value in options.items() for part in (f"--{name}", value)]

    server = None if kind.server is None else [*python, *kind.server]
    return Program([*python, *kind.command], server, worker_arguments, environment)


def _announce(folder: Path, host: str, port: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"host": host, "port": port, "pid": os.getpid()}) + "\n"
    write_atomically(folder / "agent.json", content.encode())


def _job(path: Path, rank: int | None) -> LiveMigrationJob:
    try:
        job = LiveMigrationJob.model_validate_json(path.read_bytes(), extra="ignore")
    except OSError as error:
        raise UserError(f"{path}: the job cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UserError(f"{path}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error
    if rank is not None and not 0 <= rank < job.spec.world_size:
        raise UserError(f"--rank {rank}: the job has ranks 0 to {job.spec.world_size - 1}")
    return job
