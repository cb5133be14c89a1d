"""Jobs of tenants who want to stop the operator, by number: sizes, patterns, storms of restarts, and agents who lie."""

from __future__ import annotations

import json
from typing import Any

from lmj_api.names import API_VERSION, KIND
from operator_load.jobs import spec_of

KINDS = ("size", "pattern", "storm", "liar")
TENANTS = ("tenant-a", "tenant-b", "tenant-c", "tenant-d")
"""Their namespaces."""
RANKS = {"size": 4, "pattern": 2, "storm": 2, "liar": 2}
LARGEST = 1_300_000
DEEPEST = 9_000
PARTS = 400_000
"""Empty lists in a template."""
FIELDS = 25_000
"""In a template: an API server keeps the name of each once more, of those who manage fields."""
_PATTERN = "|".join(["a+a+a+b"] * 20)
_WIDE = "[^x]{45}.*y"


def name(number: int) -> str:
    """Of hostile job ``number``, which says what it is."""
    return f"{KINDS[number % len(KINDS)]}-{number // len(KINDS):04d}"


def namespace(number: int) -> str:
    """Of hostile job ``number``."""
    return TENANTS[number // len(KINDS) % len(TENANTS)]


def document(number: int) -> bytes:
    """Hostile job ``number``, as JSON."""
    kind, turn = KINDS[number % len(KINDS)], number // len(KINDS)
    spec: dict[str, Any] = spec_of(RANKS[kind])
    text = ""
    if kind == "size":
        text = _large(turn, spec)
    elif kind in ("pattern", "storm"):
        spec["recovery"] = {"maxRestarts": 10**9, "backoffSeconds": 0, "maxBackoffSeconds": 0, "workerRestarts": 0}
    if kind == "pattern":
        patterns = [_PATTERN, _WIDE] * 16
        spec["recovery"] |= {"rules": [{"logPattern": pattern, "action": "Fail"} for pattern in patterns], "workerRestarts": 3}
    metadata = {"name": name(number), "namespace": namespace(number)}
    body = json.dumps({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})
    return body.replace('"LARGE"', text).encode()


def _large(turn: int, spec: dict[str, Any]) -> str:
    """Half of them are as large as a job may be, and train. The others are larger than that, each in its way."""
    if turn % 2:
        value, count = "v" * 100, 1_500
        spec["template"] = {"spec": {"containers": [{"name": "trainer", "env": _variables(count, value)}]}}
        return ""
    spec["template"] = {"spec": {"x": "LARGE"}}
    # What costs an API server much memory for each byte is seldom.
    match turn // 2 % 10:
        case 0:
            return '{"a":' * DEEPEST + "1" + "}" * DEEPEST
        case 1:
            return "[" + ",".join(["[]"] * PARTS) + "]"
        case 2:
            return "{" + ",".join(f'"k{number}":{{}}' for number in range(FIELDS)) + "}"
    return '"' + "a" * LARGEST + '"'


def _variables(count: int, value: str) -> list[dict[str, str]]:
    return [{"name": f"VARIABLE_{number}", "value": value} for number in range(count)]
