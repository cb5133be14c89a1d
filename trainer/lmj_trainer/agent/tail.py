"""The last lines of a stream, bounded in number and length."""

from collections import deque

from lmj_api.bounds import printable


class Lines:
    """Cuts a stream into lines; what is longer than ``limit`` bytes is cut there too, so that nothing grows without bound."""

    def __init__(self, limit: int = 8192) -> None:
        self._limit = limit
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that ``chunk`` completes, without their ends."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        result = [piece for line in lines for piece in self._pieces(line)]
        if len(self._rest) > self._limit:
            *full, self._rest = self._pieces(self._rest)
            result += full
        return result

    def end(self) -> list[bytes]:
        """What is left when the stream ends."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []

    def _pieces(self, line: bytes) -> list[bytes]:
        return [line[i : i + self._limit] for i in range(0, max(len(line), 1), self._limit)]


class Tail:
    """The last ``count`` lines as text that is fit to be shown: printable, at most ``width`` characters each."""

    def __init__(self, count: int = 50, width: int = 500) -> None:
        self._lines: deque[str] = deque(maxlen=count)
        self._width = width

    def add(self, line: bytes) -> None:
        """Take one line. Of a progress bar, which goes back with carriage returns, the last state counts."""
        text = line.decode("utf-8", "replace").rstrip("\r").rsplit("\r", 1)[-1]
        text = printable(text).rstrip()
        self._lines.append(text if len(text) <= self._width else text[: self._width - 1] + "…")

    def lines(self) -> list[str]:
        """The lines, oldest first."""
        return list(self._lines)
