"""Requests to Azure that are made again, by the time that they may take in all, and what is said of one that failed."""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, IncompleteReadError

from lmj_trainer.store.port import RefusedError, RenewableError

if TYPE_CHECKING:
    from azure.storage.fileshare import ShareClient

    from lmj_trainer.store.renewed import Renewed

REQUEST_SECONDS = 30
"""How long a request waits for its connection, and for each part of its answer."""
RETRY_SECONDS = 60.0
"""How long a request is made again, to a server that is busy or not there."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two trials: they double."""

ABSENT = {"ResourceNotFound", "ParentNotFound"}
"""What a server says of a file or a folder that is not there. A share that is not there has another code."""
_NO_SHARE = "ShareNotFound"
_BUSY = {429, 503}
_PASSING = {408, 500, 502, 504} | _BUSY
# A client of SMB has the file open, or has not told yet what it has of it.
_PASSING_CODES = {"SharingViolation", "DeletePending", "ClientCacheFlushDelay", "CannotDeleteFileOrDirectory"}
_QUERY = re.compile(r"\?\S+")
T = TypeVar("T")


class AnswerTornError(AzureError):
    """A part of an answer came, and the rest did not."""


def persistently(share: Renewed[ShareClient], ask: Callable[[], T]) -> T:
    """What ``ask`` answers, which is one request to ``share`` as it is reached by then, and raises AzureError. Raises RenewableError too."""
    return share.ask(lambda _: _until_it_passes(ask), refuses_keys)


def _until_it_passes(ask: Callable[[], T]) -> T:
    end, pause = time.monotonic() + RETRY_SECONDS, FIRST_PAUSE
    while True:
        try:
            return ask()
        except AzureError as error:
            wait = pause * random.uniform(0.5, 1)
            if not _may_pass(error) or time.monotonic() + wait > end:
                raise
        time.sleep(wait)
        pause = min(2 * pause, LONGEST_PAUSE)


def code_of(error: AzureError) -> str:
    """The server's name for what went wrong; ``""``: it did not answer, or has none."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")


def was_refused(error: AzureError) -> bool:
    """Whether the server has said that it did not do what was asked."""
    return isinstance(error, HttpResponseError) and (
        error.status_code in _BUSY or ((error.status_code or 0) // 100 == 4 and error.status_code != 408)
    )


@contextlib.contextmanager
def told_as_of_files(place: str, secret: str | None) -> Iterator[None]:
    """Errors of the library as those of files. ``secret``: the name of the job's by which requests are signed, where it is one."""
    try:
        yield
    except AzureError as error:
        if code_of(error) in ABSENT:
            raise FileNotFoundError(place) from None
        said = f"{place}: {_reason(error)}"
        if refuses_keys(error) and secret is not None:
            raise RenewableError.of(said, secret) from None
        raise (RefusedError if code_of(error) == _NO_SHARE or _is_refusal(error) else OSError)(said) from None


def refuses_keys(error: Exception) -> bool:
    """Whether the server does not take what the request was signed with, whoever else may do what was asked."""
    status = error.status_code if isinstance(error, HttpResponseError) else None
    return isinstance(error, ClientAuthenticationError) or status == 401


def _is_refusal(error: AzureError) -> bool:
    """Whether the server does not give it to this caller."""
    return refuses_keys(error) or (isinstance(error, HttpResponseError) and error.status_code == 403)


def _may_pass(error: AzureError) -> bool:
    if isinstance(error, ClientAuthenticationError):
        return False
    if not isinstance(error, HttpResponseError) or isinstance(error, IncompleteReadError):
        return True  # there was no answer, or not all of it
    status = error.status_code or 0
    return status in _PASSING or status in (0, 200, 206) or code_of(error) in _PASSING_CODES


def _reason(error: AzureError) -> str:
    """One line: without the query of an URL, which may sign it, and without what the server says of signatures."""
    lines = (str(error.message) or type(error).__name__).splitlines()
    status = error.status_code if isinstance(error, HttpResponseError) else None
    name = code_of(error) or (str(status) if status else "")
    text = _QUERY.sub("?…", " ".join(lines[0].split()) if lines else "")
    return ": ".join(part for part in (name, text) if part)[:300]
