"""Errors that are told apart by who can mend them."""


class UserError(Exception):
    """A mistake in the job, its data or its model that no restart mends. Its text is one line: what, where, and what to do."""
