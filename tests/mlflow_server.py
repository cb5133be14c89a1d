"""MLflow's real server, in an environment of its own: it needs a hundred packages that the project has no use for."""

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.binaries import locked
from cluster.errors import Unavailable

VERSION = "3.17.2"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lmj"
CHECKOUT = Path(__file__).parents[1]
INSTALL_SECONDS = 900.0
START_SECONDS = 120.0


def ensure_server(cache: Path = CACHE) -> Path:
    """The program, installed once from the package index. Raises Unavailable where it cannot be had."""
    folder = cache / f"mlflow-{VERSION}"
    program = folder / "bin" / "mlflow"
    uv = shutil.which("uv", path=os.pathsep.join([str(CHECKOUT / ".uv" / "bin"), os.environ.get("PATH", os.defpath)]))
    if program.exists():
        return program
    if uv is None:
        raise Unavailable("MLflow's server is not installed, and neither is uv, which would: make setup")
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "mlflow.lock", "who installs MLflow's server already"):
        if not program.exists():
            # What is half done has no program yet: its folder is begun anew.
            for command in (
                [uv, "venv", "--quiet", "--clear", str(folder), "--python", "python3"],
                [uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), f"mlflow=={VERSION}"],
            ):
                done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
                if done.returncode != 0:
                    raise Unavailable(f"MLflow's server cannot be installed: {done.stderr.strip()[-500:]}")
    return program


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[str]:
    """Serve what is in ``folder`` meanwhile; its address. Raises Unavailable."""
    program = ensure_server()
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    command = [
        str(program.with_name("python")),
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--artifacts-destination", str(folder / "artifacts")]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True)
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, folder / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 9)
        process.wait(30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"MLflow's server does not answer: {log.read_text()[-2000:]}") from None
            time.sleep(0.1)
