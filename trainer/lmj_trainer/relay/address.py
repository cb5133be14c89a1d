"""Where a worker behind a relay is reached, and by which key its relay is known: what a view carries as a member's address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from lmj_api.signed import PUBLIC_KEY, is_public_key

SCHEME = "tls"
_PORT = "[1-9][0-9]{0,4}"
_ADDRESS = re.compile(
    rf"{SCHEME}://(?P<host>[0-9.]{{7,15}}|\[[0-9a-fA-F:.]{{2,45}}\]):(?P<port>{_PORT})/(?P<worker>{_PORT})#(?P<key>{PUBLIC_KEY.pattern})"
)
_LAST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """As text: ``tls://HOST:PORT/WORKER#KEY``."""

    host: str
    """The address of the pod."""
    port: int
    """Where its relay listens."""
    worker: int
    """Where its worker listens, on the loopback interface of that pod. Another worker has another one."""
    key: str
    """The relay's public key: 32 bytes of Ed25519 in base64url."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{SCHEME}://{host}:{self.port}/{self.worker}#{self.key}"

    @classmethod
    def of(cls, text: str) -> Address:
        """The inverse of ``str``. Raises ValueError for all else."""
        found = _ADDRESS.fullmatch(text)
        if found is None or max(int(found["port"]), int(found["worker"])) > _LAST_PORT or not _counts(found):
            raise ValueError(f"{text[:120]!r} is not the address of a worker behind a relay ({SCHEME}://HOST:PORT/WORKER#KEY)")
        return cls(found["host"].strip("[]"), int(found["port"]), int(found["worker"]), found["key"])


def _counts(found: re.Match[str]) -> bool:
    """Whether its host is an IP address, and no name that would be looked up, and its key one by which somebody is known."""
    host = found["host"]
    try:
        IPv6Address(host.strip("[]")) if host.startswith("[") else IPv4Address(host)
    except ValueError:
        return False
    return is_public_key(found["key"])
