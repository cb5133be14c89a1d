"""A client of a server of storage by what the job's Secret has: another one when that changes, without a restart."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from lmj_trainer.errors import UserError
from lmj_trainer.store.port import RenewableError
from lmj_trainer.store.secret import Secret
from lmj_trainer.store.variables import Given

log = logging.getLogger(__name__)

RENEWAL_SECONDS = 60.0
"""For which a Secret is waited for to change, once, when a server refuses what it took before: as long as one that does not answer is."""
LOOK_SECONDS = 1.0
"""Between two looks at it."""
_TRIALS = 3
"""Of one request, by what the Secret has at the time of each."""

C = TypeVar("C")
R = TypeVar("R")


class Renewed(Generic[C]):
    """Threads may share it. Without a Secret it is one client, by the environment, for good."""

    def __init__(self, secret: Secret | None, open_: Callable[[Given], C], signs: Callable[[Given], bool]) -> None:
        """``open_``: a client by what the Secret has, and for the rest by the environment; may raise UserError, as this does. ``signs``: whether
        that has something by which requests are signed; else it is an identity of the machine's or the workload's.
        """
        self._secret, self._open, self._signs = secret, open_, signs
        self._lock = threading.Lock()
        self._given: Given = {} if secret is None else secret.read()
        self._client = open_(self._given)
        self._taken: Given | None = None
        """What the server has taken, and is worth being waited for when it is refused."""

    @property
    def now(self) -> C:
        """The client by what the Secret has now. Raises RenewableError where that leads nowhere."""
        return self._current()[1]

    @property
    def secret(self) -> str | None:
        """The name of the Secret by which requests are signed; None: it is something else."""
        return self._secret.name if self._secret is not None and self._signs(self._given) else None

    def ask(self, do: Callable[[C], R], refuses: Callable[[Exception], bool]) -> R:
        """What ``do`` answers, with the client. It is done again when the server refuses what the request is signed with, and the Secret has
        changed, or does so within :data:`RENEWAL_SECONDS`; for what the server never took it is not waited. ``refuses``: whether an error
        says so. Raises what ``do`` raises.
        """
        for trial in itertools.count(1):
            given, client = self._current()
            try:
                answer = do(client)
            except Exception as error:
                if trial == _TRIALS or not refuses(error) or not self._changes(given):
                    raise
            else:
                self._taken = given
                return answer
        raise AssertionError  # it counts for ever

    def _current(self) -> tuple[Given, C]:
        with self._lock:
            if self._secret is not None and (given := self._secret.latest(self._given)) != self._given:
                try:
                    client = self._open(given)
                except UserError as error:
                    raise RenewableError.of(str(error), self._secret.name) from None
                log.info("the Secret %s has changed: what it has now is used", self._secret.name)
                self._given, self._client = given, client
            return self._given, self._client

    def _changes(self, given: Given) -> bool:
        """Whether the Secret has something else than ``given``, which was refused."""
        if self._secret is None:
            return False
        waits, end = self._taken is given, time.monotonic() + RENEWAL_SECONDS
        while self._secret.latest(given) == given:
            if not waits or time.monotonic() >= end:
                self._taken = None  # nobody waits for it again: the next request is refused at once
                return False
            time.sleep(LOOK_SECONDS)
        return True
