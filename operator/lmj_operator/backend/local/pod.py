"""One pod of this machine: an agent in a session of its own, held alive by a pipe."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from lmj_api.clock import steady_time
from lmj_api.cut import Cut
from lmj_api.spec.job import JobSpec, LiveMigrationJob
from lmj_operator.backend.caller import Caller
from lmj_operator.backend.local.process import kill_worker, last_line, signal_group

TERMINATE_SECONDS = 5.0
"""How long an agent may take to end its worker and itself."""
GRACE_SECONDS = 240.0
"""The same when somebody else tells it to end: nobody here ends it after that, and its rank may have to move first."""


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Where a pod's files are."""

    name: str
    rank: int | None
    """None: a standby."""
    serial: int
    folder: Path
    log: Path
    behind: bool = False
    """Others train on this machine, and nobody waits for it."""
    grace: float = GRACE_SECONDS
    """Seconds that its agent takes at most when somebody else tells it to end."""
    relayed: bool = False
    """What its worker says to others is encrypted. On one machine nobody needs that: it is as on a cluster."""
    uid: str = field(default_factory=lambda: str(uuid4()))
    """What its agent is asked as: requests are signed for one pod alone."""

    @property
    def job_file(self) -> Path:
        """The job as its agent and workers read it: that with which it was made, whatever is wanted by now."""
        return self.folder / "job.json"


@dataclass(frozen=True, slots=True)
class Announcement:
    """Where an agent listens, as it wrote it."""

    host: str
    port: int
    pid: int


def read_announcement(folder: Path) -> Announcement | None:
    """What the agent of the pod in ``folder`` wrote; None: nothing yet."""
    try:
        written = json.loads((folder / "agent.json").read_bytes())
        host = str(written["host"])
        return Announcement(f"[{host}]" if ":" in host else host, int(written["port"]), int(written["pid"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RuntimeError(f"{folder / 'agent.json'}: not what an agent writes: {error!r}") from error


class LocalPod:
    """A started pod. Its agent's stdin is the lifeline: when this process dies, it closes, and the agent ends all and itself."""

    def __init__(self, place: PodPlace, process: asyncio.subprocess.Process, created: float, cut: Cut, caller: Caller) -> None:
        self.place = place
        self.caller = caller
        """Signs what its agent is asked."""
        self.cut = cut
        self.process = process
        self.created = created
        self.unreachable_since: float | None = None
        self.worker_pid: int | None = None
        self.rank = place.rank
        """The rank that it is by now; None: none."""

    @classmethod
    async def start(cls, place: PodPlace, job: LiveMigrationJob, command: Sequence[str], caller: Caller) -> "LocalPod":
        """Start ``command`` (the agent) as the pod at ``place``, for ``job``. Raises OSError."""
        shutil.rmtree(place.folder, ignore_errors=True)
        place.folder.mkdir(parents=True)
        place.job_file.write_text(job.to_json())
        place.log.parent.mkdir(parents=True, exist_ok=True)
        with place.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONUNBUFFERED": "1",
                    "PYTHONSAFEPATH": "1",
                },  # beside a csv.py of the user's, it would be ours,
            )
        return cls(place, process, steady_time(), job.spec.pipeline.cut, caller)

    @property
    def exit_code(self) -> int | None:
        """How the agent ended; None while it runs."""
        return self.process.returncode

    @property
    def exit_message(self) -> str | None:
        """The last line that the agent logged, once it ended by itself: one that was killed had no time to say why."""
        return last_line(self.place.log) if self.exit_code is not None and self.exit_code >= 0 else None

    @property
    def address(self) -> str | None:
        """``host:port`` of the agent; None until it has written it."""
        written = read_announcement(self.place.folder)
        return f"{written.host}:{written.port}" if written is not None else None

    async def delete(self) -> None:
        """End the agent and all that it started; after ``TERMINATE_SECONDS`` by force."""
        pid = self.process.pid
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)  # to the agent: there is nobody that it need ask whether it may stay
        if self.process.returncode is None and signal_group(pid, signal.SIGTERM):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), TERMINATE_SECONDS)
        self.kill()
        await self.process.wait()

    def kill(self) -> None:
        """End everything at once, without asking."""
        if self.worker_pid is not None:
            kill_worker(self.worker_pid, self.process.pid)
        # The group may outlive its leader; its number is not given to another while a member lives.
        signal_group(self.process.pid, signal.SIGKILL)
        if self.process.stdin is not None:
            self.process.stdin.close()


def grace_of(spec: JobSpec) -> float:
    """How long a pod of a job with ``spec`` takes at most when somebody else tells it to end: half of it is a script's to save in."""
    return GRACE_SECONDS if spec.command is None else max(GRACE_SECONDS, 2 * (spec.command.save_seconds + TERMINATE_SECONDS))


def agent_command(place: PodPlace, job_file: Path, trust: str) -> list[str]:
    """The command that runs the trainer's agent as the pod at ``place``. ``trust``: the public key whose owner it obeys."""
    command = [sys.executable, "-m", "lmj_trainer", "agent", "--job", str(job_file)]
    command += ["--standby"] if place.rank is None else ["--rank", str(place.rank)]
    command += ["--grace", f"{place.grace:g}", *(["--behind"] if place.behind else [])]
    command += ["--relay", "0", "--address", "127.0.0.1"] if place.relayed else []
    return [*command, "--pod", place.name, "--uid", place.uid, f"--trust={trust}", "--dir", str(place.folder), "--lifeline"]
