"""Files that are written beside their names, ``.NAME.RANDOM.partial``: how they are known, and when nobody writes them any more."""

import re
import secrets

STALE_SECONDS = 24 * 3600.0
"""One that is as old as that is of a writer that died."""
_NAME = re.compile(r"\..+\.[0-9a-f]{16}\.partial")


def unfinished_name(name: str) -> str:
    """A new one, beside ``name``. No two writers have one."""
    return f".{name}.{secrets.token_hex(8)}.partial"


def is_unfinished(name: str) -> bool:
    """Whether it is such a name."""
    return _NAME.fullmatch(name) is not None
