"""Both ends of what connects a worker to its agent: the line, and two pipes for what it says."""

import os
import socket
from contextlib import ExitStack
from io import FileIO


class Ends:
    """Ours are an open socket and files; theirs are numbers, for the worker to have."""

    def __init__(self, ours: ExitStack, theirs: ExitStack) -> None:
        """Opens them, and has them closed with the stacks. Raises OSError."""
        self._ours, self._theirs = ours, theirs
        line, their_line = socket.socketpair()
        self.line = ours.enter_context(line)
        self.their_line = theirs.enter_context(their_line).fileno()
        self.stdout, self.their_stdout = self._pipe()
        self.stderr, self.their_stderr = self._pipe()

    @classmethod
    def make(cls) -> "Ends":
        """New ones. Raises OSError; then none is left open."""
        with ExitStack() as ours, ExitStack() as theirs:
            made = cls(ours, theirs)
            made._ours, made._theirs = ours.pop_all(), theirs.pop_all()
            return made

    def close_theirs(self) -> None:
        """When the worker has its own copies, or will never have them: else their end could not be told."""
        self._theirs.close()

    def close(self) -> None:
        """All that is still open."""
        self._theirs.close()
        self._ours.close()

    def _pipe(self) -> tuple[FileIO, int]:
        read, write = os.pipe()
        ours, theirs = FileIO(read, "r"), FileIO(write, "w")
        return self._ours.enter_context(ours), self._theirs.enter_context(theirs).fileno()
