"""The operator's calls, as the API server's audit log has them."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

READS = frozenset({"get", "list"})
WRITES = frozenset({"create", "update", "patch", "delete"})
_JOB = re.compile(r"^(load-\d+)")


@dataclass(frozen=True)
class Call:
    """One call; ``at`` is when the server got it, seconds since the epoch."""

    at: float
    verb: str
    resource: str
    name: str
    code: int
    seconds: float = 0.0
    """For which the server had it."""

    @property
    def job(self) -> str | None:
        """The job whose object it was about."""
        found = _JOB.match(self.name)
        return found[1] if found else None


def calls(file: Path) -> Iterator[Call]:
    """All of them but the watches, in the order in which they ended."""
    with file.open() as lines:
        for line in lines:
            if not line.endswith("\n"):
                return  # it is being written
            event = json.loads(line)
            what = event.get("objectRef") or {}
            if event["verb"] == "watch":
                continue
            resource = "/".join(part for part in (what.get("resource", ""), what.get("subresource", "")) if part)
            at, end = (datetime.fromisoformat(event[key]).timestamp() for key in ("requestReceivedTimestamp", "stageTimestamp"))
            code = (event.get("responseStatus") or {}).get("code", 0)
            yield Call(at, event["verb"], resource or event["requestURI"], what.get("name", ""), code, end - at)


def writes_a_job(made: Iterable[Call]) -> Counter[str]:
    """Number of writes, those that were refused too, by job."""
    return Counter(call.job for call in made if call.verb in WRITES and call.job is not None)


def kinds(made: Iterable[Call]) -> dict[str, int]:
    """How often each verb was used on each resource, for people."""
    return dict(
        Counter(f"{call.verb} {call.resource}{'' if call.code < 400 else f' ({call.code})'}" for call in made).most_common()
    )
