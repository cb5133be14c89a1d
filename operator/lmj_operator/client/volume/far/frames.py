"""Messages between this machine and the pod: a line of JSON, then as many bytes as it says."""

import json
from typing import Any

Header = dict[str, Any]


def packed(header: Header, data: bytes = b"") -> bytes:
    """A message. Names may be any bytes: json writes what is no text of them as escapes."""
    return json.dumps({**header, "bytes": len(data)} if data else header).encode() + b"\n" + data


class Frames:
    """Messages out of the bytes that come."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def fed(self, data: bytes) -> list[tuple[Header, bytes]]:
        """The messages that are whole by now."""
        self._rest += data
        found = []
        at = 0
        while (end := self._rest.find(b"\n", at)) >= 0:
            header: Header = json.loads(self._rest[at:end])
            after = end + 1 + int(header.get("bytes", 0))
            if after > len(self._rest):
                break
            found.append((header, bytes(self._rest[end + 1 : after])))
            at = after
        del self._rest[:at]
        return found
