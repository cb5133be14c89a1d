"""The Hugging Face hub: what can be a name there, whether it answers, whose fault it is when it does not, and waiting until it does."""

import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar
from urllib.parse import urlparse

from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.wording import one_line

T = TypeVar("T")

_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REACH_SECONDS = 3.0
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_WORD_SECONDS = 5.0
"""Between two words of somebody who waits."""
_OFFLINE = "HF_HUB_OFFLINE"
_set_here = False


def is_hub_id(name: str) -> bool:
    """Whether ``name`` can be the id of a model or dataset (``bert-base-uncased``, ``stanfordnlp/imdb``)."""
    return _ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def is_commit(revision: str | None) -> bool:
    """Whether ``revision`` is a whole commit, which stands for the same files for ever."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def wants_no_hub() -> bool:
    """Whether this machine's user said that the hub is not to be asked, so that its cache on disk is all there is."""
    return not _set_here and os.environ.get(_OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE")


def hub_is_reachable() -> bool:
    """Whether the hub answers now; when not, this process uses what is in the hub's cache on disk until it is asked again.

    The hub's client tries a missing network for 23 s for each file, so one connection is tried first, for 3 s at most. Behind a
    proxy that says nothing, so there the client has its way.
    """
    if wants_no_hub():
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    url = urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection(
            (url.hostname, url.port or (80 if url.scheme == "http" else 443)), timeout=_REACH_SECONDS
        ).close()
    except OSError:
        _go_offline(True)
        return False
    if _set_here:
        _go_offline(False)
    return True


def is_of_the_hub(error: Exception) -> bool:
    """Whether the hub's client raises such errors for what the hub did, or did not."""
    # A connection that breaks in the middle of a file is told by the error of a package that has changed its name before.
    return isinstance(error, OSError | ValueError | RuntimeError) or type(error).__module__.startswith("httpx")


def judged(error: Exception, what: str, reachable: bool) -> UserError | OutageError:
    """Whose fault it is that ``what`` cannot be had of the hub: the job's, or that of the way there. ``reachable``: it was before."""
    if not reachable:
        text = f"{what}: there is no such file or folder, the hub cannot be reached, and it is not in the hub's cache"
        return UserError(text) if wants_no_hub() else OutageError(text)
    said: BaseException = error
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        status = getattr(response, "status_code", None)
        if isinstance(status, int):
            said = cause  # what was raised of it may tell another story
            if status not in (408, 429) and status < 500:
                break
            return OutageError(f"{what}: the hub answers {status}: {one_line(said)}", _seconds(response))
        if isinstance(cause, ConnectionError | TimeoutError) or type(cause).__module__.startswith("httpx"):
            return OutageError(f"{what}: the hub cannot be reached: {one_line(error)}")
    return UserError(f"{what}: there is no such file or folder, and the hub says: {one_line(said)}")


def patiently(
    ask: Callable[[], T],
    seconds: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What ``ask`` returns; while it raises OutageError it is asked again, less and less often, as the hub wishes, for ``seconds``
    from the first on.

    Raises the last OutageError, and at once whatever else ``ask`` raises. ``say`` gets a line every few seconds.
    """
    deadline, pause = None, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return ask()
        except OutageError as outage:
            deadline = clock() + seconds if deadline is None else deadline
            left = deadline - clock()
            if left <= 0:
                raise
            wait = min(left, pause if outage.retry_after is None else max(pause, outage.retry_after))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            until = clock() + wait
            while (rest := until - clock()) > 0:
                say(f"{outage}; tries again in {rest:.0f} s, for {max(0.0, deadline - clock()):.0f} s more")
                sleep(min(rest, _WORD_SECONDS))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    for _ in range(16):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or seen.__context__


def _seconds(response: object) -> float | None:
    said = getattr(response, "headers", {}).get("Retry-After")
    return float(said) if isinstance(said, str) and said.isdigit() else None


def _go_offline(offline: bool) -> None:
    global _set_here
    _set_here = offline
    os.environ[_OFFLINE] = "1" if offline else "0"
    for module in ("huggingface_hub.constants", "datasets.config"):  # read once, at import
        if module in sys.modules:
            sys.modules[module].HF_HUB_OFFLINE = offline  # type: ignore[attr-defined]
