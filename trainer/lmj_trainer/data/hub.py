"""Names on the Hugging Face hub: what is one, and not waiting half a minute for a hub that cannot be reached."""

import os
import re
import socket
import sys
from functools import cache
from urllib.parse import urlparse

_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
_REACH_SECONDS = 3.0


def is_hub_id(name: str) -> bool:
    """Whether ``name`` can be the id of a model or dataset (``bert-base-uncased``, ``stanfordnlp/imdb``)."""
    return _ID.fullmatch(name) is not None and ".." not in name and "--" not in name


@cache
def hub_is_reachable() -> bool:
    """Whether the hub answers; when not, this process uses what is in the hub's cache on disk and asks no more.

    The hub's client tries a missing network for 23 s for each file, so one connection is tried first, for 3 s at most. Behind a
    proxy that says nothing, so there the client has its way.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    url = urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection(
            (url.hostname, url.port or (80 if url.scheme == "http" else 443)), timeout=_REACH_SECONDS
        ).close()
    except OSError:
        os.environ["HF_HUB_OFFLINE"] = "1"
        for module in ("huggingface_hub.constants", "datasets.config"):  # read once, at import
            if module in sys.modules:
                sys.modules[module].HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
        return False
    return True
