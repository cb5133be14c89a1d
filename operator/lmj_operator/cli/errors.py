"""What ends a command: an exit code and, for people, one line."""

SUCCEEDED = 0
FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


class CommandError(Exception):
    """The command ends with ``code``; the text is told as ``error: ...``, a line for each mistake."""

    def __init__(self, *lines: str, code: int = BAD_INPUT) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.code = code
