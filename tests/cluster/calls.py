"""What a call to the API server is in RBAC's words."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_OF_A_NAMESPACE = frozenset({"status", "finalize"})


@dataclass(frozen=True)
class Target:
    """Verb and object of a call; ``resource`` is empty for paths that are no resource (/version, /readyz, discovery)."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True)
class Call:
    """A call as it went: ``status`` is the HTTP status that the client got, ``answered`` the one that the server gave (each None when there
    was none); ``fault`` what was done to it."""

    number: int
    method: str
    path: str
    target: Target
    status: int | None = None
    write: int | None = None
    fault: str = ""
    answered: int | None = None


@dataclass(frozen=True)
class Write:
    """A call that changes something, ``number`` from 1, as it is told before and after it was done."""

    number: int
    method: str
    path: str
    target: Target
    body: bytes


def target_of(method: str, path: str, query: Mapping[str, str]) -> Target:
    """The target of a request, as the API server's authorizer sees it; ``path`` as it was sent, percent signs and all."""
    verb = _VERBS.get(method, method.lower())
    parts = [unquote(part) for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) > 2:
        group, rest = "", parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, rest = parts[1], parts[3:]
    else:
        return Target(verb)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in _OF_A_NAMESPACE:
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest, "", "")[0], (*rest, "", "")[1], "/".join(rest[2:])
    if verb == "get" and query.get("watch", "").lower() in ("1", "true"):
        verb = "watch"
    elif not name:
        verb = {"get": "list", "delete": "deletecollection"}.get(verb, verb)
    return Target(verb, group, resource, subresource, namespace, name)
