"""Errors that are told apart by who can fix them."""


class UserError(Exception):
    """A mistake in the job, its data or its model that no restart fixes. Its text is one line: what, where, and what to do."""


class CutOffError(Exception):
    """Nobody can connect to this process any more; another in its place can be reached, and maps the same memory. Its text is one line."""


class OutageError(Exception):
    """Something elsewhere does not answer now, and may later: nobody's mistake here. Its text is one line."""

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        """``retry_after``: seconds after which it wants to be asked again, where it said so."""
        super().__init__(text)
        self.retry_after = retry_after
