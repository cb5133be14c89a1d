"""How far one is with what is fetched, in bytes: told every two seconds, whether any came or not."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

SECONDS = 2.0
_GIGA, _MEGA = 1e9, 1e6


@contextmanager
def telling(what: str, say: Callable[[str], None], seconds: float = SECONDS) -> Iterator[type[Any]]:
    """A class for the client's bars (``tqdm_class``), which draw nothing: meanwhile ``say`` gets a line about ``what`` every ``seconds``."""
    from tqdm.std import tqdm

    bars: list[Any] = []

    class Bar(tqdm):  # type: ignore[misc]
        """Counts."""

        monitor_interval = 0  # there is nothing to draw again for its thread

        def __init__(self, *arguments: Any, **options: Any) -> None:
            # tqdm counts nothing where it is disabled, which a process without a terminal may have asked for.
            super().__init__(*arguments, **options | {"disable": False, "file": StringIO()})
            if self.unit == "B":
                bars.append(self)

        def display(self, *_: Any, **__: Any) -> bool:
            return True

    def tell() -> None:
        # One bar has what came, and one what was written; a file counts when it is begun.
        say(f"{what}: {amount(max((bar.n for bar in bars), default=0), max((bar.total or 0 for bar in bars), default=0))}")

    with repeatedly(tell, seconds):
        yield Bar


@contextmanager
def repeatedly(tell: Callable[[], None], seconds: float = SECONDS) -> Iterator[None]:
    """Have ``tell`` called every ``seconds`` meanwhile, by a thread of its own."""

    def run() -> None:
        while not done.wait(seconds):
            tell()

    done = threading.Event()
    thread = threading.Thread(target=run, name="fetching", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(seconds)


def amount(some: float, all_: float) -> str:
    """``some`` of ``all_`` bytes, in a unit that suits the larger."""
    unit, name = (_GIGA, "GB") if max(some, all_) >= _GIGA else (_MEGA, "MB")
    return f"{some / unit:.1f} of {all_ / unit:.1f} {name}" if all_ >= some and all_ else f"{some / unit:.1f} {name}"
