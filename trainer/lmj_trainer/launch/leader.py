"""The view line's end at the leader."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lmj_api.view import View
from lmj_trainer.launch.connection import BEAT_SECONDS, Connection, LineError
from lmj_trainer.launch.identity import Credentials
from lmj_trainer.launch.line import FINISH_SECONDS, BrokenError, Life, broken
from lmj_trainer.launch.memory.choice import Held
from lmj_trainer.launch.words import Verdict, Word, WordKind


@dataclass
class Leader:
    """The line's end at the leader: hears all, decides, and tells all."""

    view: View
    rank: int
    credentials: Credentials
    life: Life
    start: Callable[[Mapping[int, Held]], Mapping[int, Word]]
    """When all are there: the word for each, with which its processes are started, because of what they have in memory."""
    held: Held = field(default_factory=Held)
    """What this node has in memory."""
    _members: dict[int, tuple[Connection, str]] = field(default_factory=dict)
    """With what each wants to be proven."""
    _serving: set[asyncio.Task[None]] = field(default_factory=set)
    _closed: bool = False
    _lively_until: float = 0.0

    def __post_init__(self) -> None:
        ranks = [member.rank for member in self.view.members]
        self._verdict, self._others = Verdict(ranks), {*ranks} - {self.rank}
        self._held = {self.rank: self.held}
        self._decided: asyncio.Queue[Word] = asyncio.Queue(1)
        self._completed: Word | None = None
        self._changed = asyncio.Event()

    async def begin(self, seconds: float) -> Word:
        """See :class:`Line`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._members.keys() != self._others and not self._verdict.over:
                    self._changed.clear()
                    await self._changed.wait()
        if self._verdict.over:
            word = self._decided.get_nowait()
            raise broken(word)
        missing = sorted(self._others - self._members.keys())
        if missing:
            reason = f"rank {missing[0]} did not connect to the leader of the view within {seconds:g} s"
            self._tell(self._verdict.hear(missing[0], Word(kind=WordKind.FAILED, message=reason)))
            raise BrokenError(reason, missing[0])
        words = self.start(self._held)
        for rank, (connection, nonce) in self._members.items():
            connection.say(words[rank].model_copy(update={"proof": self.credentials.show("leader", nonce, rank)}))
        return words[self.rank]

    def say(self, word: Word) -> None:
        """See :class:`Line`."""
        self._tell(self._verdict.hear(self.rank, word))

    async def next(self) -> Word:
        """See :class:`Line`."""
        return await self._decided.get()

    def complete(self) -> None:
        """See :class:`Line`."""
        if self._completed is not None:
            self._say_to_all(self._completed)

    def close(self) -> None:
        """See :class:`Line`."""
        self._closed = True
        for connection, _ in self._members.values():
            connection.finish()
        for task in self._serving:
            asyncio.get_running_loop().call_later(FINISH_SECONDS, task.cancel)

    async def closed(self) -> None:
        """Wait until all members have taken the last word, or had time to."""
        if self._serving:
            await asyncio.wait(self._serving, timeout=FINISH_SECONDS)

    async def serve(self, hello: Word, connection: Connection) -> None:
        """Hear the rank of ``hello``, which is of this view, until its connection ends. Raises LineError when it is not wanted."""
        rank = hello.rank
        if rank not in self._others or rank in self._members or self._closed:
            raise LineError(f"rank {rank} is not waited for")
        self._members[rank] = connection, hello.nonce
        self._held[rank] = Held(hello.have, hello.whole, hello.fetches)
        self._changed.set()
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        beating = asyncio.create_task(connection.beat(self._lively))
        try:
            while True:
                word = await connection.hear()
                if word.kind is not WordKind.BEAT:
                    self._tell(self._verdict.hear(rank, word))
                elif word.lively:
                    self._seen()
        except LineError as error:
            self._tell(self._verdict.gone(rank, str(error)))
        finally:
            beating.cancel()
            self._serving.discard(task)

    def _tell(self, word: Word | None) -> None:
        if word is None:
            return
        self._decided.put_nowait(word)
        self._changed.set()
        if word.kind is WordKind.COMPLETED:
            self._completed = word
        else:
            self._say_to_all(word)

    def _say_to_all(self, word: Word) -> None:
        for connection, _ in self._members.values():
            connection.say(word)

    def _seen(self) -> None:
        # Told to each of the others in its next beat.
        self._lively_until = asyncio.get_running_loop().time() + 1.5 * BEAT_SECONDS
        self.life.seen()

    def _lively(self) -> bool:
        if self.life.own():
            self._seen()
        return asyncio.get_running_loop().time() < self._lively_until
