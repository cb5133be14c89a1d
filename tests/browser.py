"""A real browser for tests: Debian's Chromium without a window, spoken to by the DevTools protocol through two pipes. It reaches no network."""

import base64
import fcntl
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cluster import packages
from cluster.errors import ClusterError

SECONDS = 120.0
"""For its start, and for each answer."""
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)
_READS, _WRITES = 3, 4
"""The descriptors that the browser has its pipes at."""


class Pipes:
    """Messages to the browser and from it: JSON, each ended by a zero."""

    def __init__(self, writes: int, reads: int, log: Path) -> None:
        self._writes, self._reads, self._log = writes, reads, log
        self._rest = b""

    def send(self, message: dict[str, Any]) -> None:
        os.write(self._writes, json.dumps(message).encode() + b"\0")

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next message. Raises ClusterError with the browser's log when there is none until ``deadline``."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reads], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self._reads, 1 << 20) if ready else b""
            if not more:
                raise ClusterError(f"the browser does not answer: {self._log.read_text(errors='replace')[-2000:]}")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        return told


class Page:
    """A tab."""

    def __init__(self, pipes: Pipes) -> None:
        self._pipes, self._number, self._session = pipes, 0, ""
        self.complaints: list[str] = []
        """What the page asked for beside its file, and what it logged as an error."""
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a DevTools method. Raises ClusterError with the browser's complaint."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        self._pipes.send({"id": self._number, "method": method, "params": parameters, **session})
        deadline = time.monotonic() + SECONDS
        while True:
            told = self._pipes.receive(deadline)
            if told.get("id") == self._number:
                if "error" in told:
                    raise ClusterError(f"{method}: {told['error']['message']}")
                result: dict[str, Any] = told["result"]
                return result
            self._hear(told.get("method", ""), told.get("params", {}))

    def _hear(self, method: str, values: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent" and not values["request"]["url"].startswith("file:"):
            self.complaints.append(f"asks for {values['request']['url'][:100]}")
        elif method == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.complaints.append(values["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.complaints.append(f"{method}: {values}")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def show(self, file: Path) -> None:
        """Load ``file``."""
        self.call("Page.navigate", url=file.absolute().as_uri())
        deadline = time.monotonic() + SECONDS
        while self.ask("document.readyState + location.protocol") != "completefile:":
            if time.monotonic() > deadline:
                raise ClusterError(f"{file} is not loaded after {SECONDS:g} s")
            time.sleep(0.05)

    def resize(self, width: int, height: int = 900, dark: bool = False) -> None:
        """Give the page that much room: below 600, as a phone does."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, file: Path, height: float | None = None) -> None:
        """Write the whole page as a PNG, or its first ``height`` pixels."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(height or size["height"], size["height"]), "scale": 1}
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(told["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    """A tab in a browser that ends with the block. Raises Unavailable where no Chromium can be had, ClusterError when it fails."""
    packages.ensure(["chromium"])
    program = str(packages.find("chromium"))
    (its_reads, writes), (reads, its_writes) = os.pipe(), os.pipe()
    # Away from where they are to be, so that neither is overwritten on its way there.
    high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (its_reads, its_writes)]

    def place() -> None:
        os.dup2(high[0], _READS)
        os.dup2(high[1], _WRITES)

    with tempfile.TemporaryDirectory(prefix="lmj-browser-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "log"
        command = [program, *_FLAGS, f"--user-data-dir={folder}/user", "about:blank"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=place, pass_fds=(_READS, _WRITES)
            )
        for each in (its_reads, its_writes, *high):
            os.close(each)
        try:
            yield Page(Pipes(writes, reads, log))
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
            os.close(writes)
            os.close(reads)
