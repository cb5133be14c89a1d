"""A real S3 server of this machine (versitygw), built once from its Go module."""

import os
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.binaries import DEFAULT_CACHE, Binaries
from mlflow_server import free_port

START_SECONDS = 60.0


@dataclass(frozen=True)
class S3Server:
    """Where it is, and who may use it."""

    folder: Path
    """A folder for each bucket."""
    port: int
    key: str
    secret: str
    host: str

    @property
    def environment(self) -> dict[str, str]:
        """What leads a program to it."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.host}:{self.port}",
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }

    def bucket(self, name: str) -> str:
        """Make it; its URI."""
        (self.folder / name).mkdir(exist_ok=True)
        return f"s3://{name}"


@contextmanager
def serving(folder: Path, port: int = 0, secret: str = "", host: str = "127.0.0.1") -> Iterator[S3Server]:
    """Serve what is in ``folder`` meanwhile, at an address ``host`` of this machine. ``port``, ``secret``: those of one that was there before.
    Raises Unavailable without Go.
    """
    program = Binaries(DEFAULT_CACHE).path("versitygw")
    server = S3Server(folder / "buckets", port or free_port(), "tests", secret or secrets.token_hex(16), host)
    server.folder.mkdir(parents=True, exist_ok=True)
    own = {"ROOT_ACCESS_KEY": server.key, "ROOT_SECRET_KEY": server.secret}
    command = [str(program), "--quiet", "--port", f"{host}:{server.port}", "posix", str(server.folder)]
    with (
        (folder / "s3.log").open("ab") as log,
        subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=log) as process,
    ):
        try:
            wait_for(process, f"http://{host}:{server.port}/", folder / "s3.log")
            yield server
        finally:
            process.kill()


class Restartable:
    """One that goes away, and comes back at the same address with what it had. Pods and processes of this machine reach it at ``host``."""

    def __init__(self, folder: Path, host: str) -> None:
        self._folder, self._running = folder, ExitStack()
        self.server = self._running.enter_context(serving(folder, host=host))

    def stop(self) -> None:
        """As a power cut would. Idempotent."""
        self._running.close()

    def start(self) -> None:
        """After :meth:`stop`."""
        self._running.enter_context(serving(self._folder, self.server.port, self.server.secret, self.server.host))


def wait_for(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    """Until ``process`` answers at ``url``."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=5)
        except urllib.error.HTTPError:
            return  # nobody may ask that without a signature
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server does not start: {log.read_text()[-2000:]}") from None
            time.sleep(0.05)
        else:
            return
