"""A module all of whose tests a run leaves out is not imported: what only such tests import takes seconds."""

import re

MARK = re.compile(r"^pytestmark = (?:\[\s*)?pytest\.mark\.(\w+)\b", re.MULTILINE)
TERM = re.compile(r"(not )?\w+")


def left_out(text: str, expression: str) -> bool:
    """Whether ``expression``, as after ``-m``, leaves out each test of the module of this ``text``, for a mark that all of them have.

    Only terms that are joined by ``and`` can tell. Of any other expression, and of marks that are written in another way, nothing
    is known: the module is imported, and pytest looks at its tests.
    """
    terms = expression.split(" and ")
    if not all(TERM.fullmatch(term) for term in terms):
        return False
    found = MARK.search(text)
    return found is not None and f"not {found[1]}" in terms
