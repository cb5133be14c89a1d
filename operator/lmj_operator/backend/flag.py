"""Something has happened: for one who waits for it."""

import asyncio


class Flag:
    """As an event of asyncio's, of which several may wait, and which therefore keeps a kilobyte: of jobs there are thousands."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        """It has happened."""
        self._is_set = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def clear(self) -> None:
        """The next is waited for."""
        self._is_set = False

    async def wait(self) -> None:
        """Until it has happened. Raises RuntimeError when another waits."""
        if self._waiting is not None:
            raise RuntimeError("another waits for this flag")
        if self._is_set:
            return
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None
