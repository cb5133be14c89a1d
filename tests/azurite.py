"""Azurite, Azure's own emulator of Blob Storage, installed once from npm."""

import base64
import hmac
import os
import secrets
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from cluster import packages
from cluster.binaries import locked
from cluster.errors import Unavailable
from mlflow_server import CACHE, free_port
from s3_server import wait_for

VERSION = "3.37.0"
INSTALL_SECONDS = 600.0
END_SECONDS = 20.0
ACCOUNT = "tests"


def ensure_server(cache: Path = CACHE) -> Path:
    """The program, installed once. Raises Unavailable where it cannot be had."""
    folder = cache / f"azurite-{VERSION}"
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    if program.exists():
        return program
    packages.ensure(["npm"])
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "azurite.lock", "who installs Azurite already"):
        if not program.exists():
            unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
            shutil.rmtree(unfinished, ignore_errors=True)
            command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(unfinished), f"azurite@{VERSION}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
            if done.returncode != 0:
                raise Unavailable(f"Azurite cannot be installed: {(done.stderr or done.stdout).strip()[-500:]}")
            unfinished.rename(folder)
    return program


@dataclass(frozen=True)
class Azurite:
    """Where it is, and who may use it."""

    folder: Path
    port: int
    secret: str

    @property
    def environment(self) -> dict[str, str]:
        """What leads a program to it."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": self.secret,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{self.port}/{ACCOUNT}",
        }

    def bucket(self, name: str) -> str:
        """Make a container, if it is not there; its URI."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        # https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key
        path = f"/{ACCOUNT}/{name}"
        told = (
            "PUT"
            + 12 * "\n"
            + "".join(f"{key}:{value}\n" for key, value in headers.items())
            + f"/{ACCOUNT}{path}\nrestype:container"
        )
        signature = base64.b64encode(hmac.digest(base64.b64decode(self.secret), told.encode(), "sha256")).decode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}?restype=container",
            method="PUT",
            headers=headers | {"Authorization": f"SharedKey {ACCOUNT}:{signature}"},
        )
        try:
            urllib.request.urlopen(request, timeout=20)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
        return f"azblob://{name}"


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[Azurite]:
    """Serve what is in ``folder`` meanwhile, with a key of its own. ``port``: that of one that was there before. Raises Unavailable."""
    program = ensure_server()
    server = Azurite(folder, port or free_port(), base64.b64encode(secrets.token_bytes(32)).decode())
    command = [
        str(program),
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(server.port),
        "--location",
        str(folder / "blobs"),
        "--silent",
    ]
    own = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{server.secret}"}
    with (
        (folder / "azurite.log").open("ab") as log,
        subprocess.Popen([*command, "--skipApiVersionCheck"], env=os.environ | own, stdout=log, stderr=log) as process,
    ):
        try:
            wait_for(process, f"http://127.0.0.1:{server.port}/", folder / "azurite.log")
            yield server
        finally:
            _end(process, folder / "azurite.log")


def _end(process: subprocess.Popen[bytes], log: Path) -> None:
    """What is there it has in memory, and writes it down when it is told to end; it says so, and its process goes on for long."""
    process.terminate()
    end = time.monotonic() + END_SECONDS
    while process.poll() is None and not log.read_bytes().rstrip().endswith(b"closed") and time.monotonic() < end:
        time.sleep(0.02)
    process.kill()
