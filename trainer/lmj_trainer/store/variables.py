"""The variables that lead to a server of storage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

Given = Mapping[str, str]
"""Variables of the job's Secret, by the names that programs know."""


def is_url(text: str) -> bool:
    """Of a server; with a name and a password in it, these would be in every error."""
    try:
        url = urlsplit(text)
        named = bool(url.hostname) and url.username is None and (url.port is None or url.port > 0)
    except ValueError:
        return False
    return url.scheme in ("http", "https") and named and re.search(r"\s", text) is None
