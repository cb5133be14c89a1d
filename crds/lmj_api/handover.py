"""A script's trainer, handed over to the process that runs the script for it.

``lmj.Trainer`` and the trainer's own processes know nothing of each other; both know this.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_awaited = ContextVar("awaited", default=False)


class HandedOver(BaseException):
    """The script has come to ``Trainer(...).train()``: whoever runs it takes the object and goes on by itself."""

    def __init__(self, trainer: Any) -> None:
        super().__init__("the script's trainer is handed over")
        self.trainer = trainer
        """An object of ``lmj.Trainer``, read by its attributes."""


@contextmanager
def awaited() -> Iterator[None]:
    """Within it ``train()`` raises :class:`HandedOver` and trains nothing."""
    token = _awaited.set(True)
    try:
        yield
    finally:
        _awaited.reset(token)


def is_awaited() -> bool:
    """Whether somebody waits for the trainer."""
    return _awaited.get()
