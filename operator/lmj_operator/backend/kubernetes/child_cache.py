"""What the watches report jobs' objects besides their pods, by metadata alone. Reading it costs no call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lmj_operator.backend.kubernetes.pod_state import owner_uid
from lmj_operator.backend.kubernetes.resources import Resource

Object = Mapping[str, Any]
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Stamp:
    """One state of an object: equal, and nobody has changed what matters."""

    uid: str
    content: int


def stamp_of(thing: Object) -> Stamp:
    """The object's stamp. Its generation changes with its spec alone; a kind that has none changes with each write."""
    metadata = thing["metadata"]
    generation = metadata.get("generation") or metadata["resourceVersion"]
    labels = sorted((metadata.get("labels") or {}).items())
    return Stamp(metadata["uid"], hash((generation, owner_uid(thing), *labels)))


class ChildCache:
    """Filled by the watches, and by who makes them; ``wake(job)`` is called when one goes, or is no more as it was made."""

    def __init__(self, wake: Callable[[Key], None]) -> None:
        self._wake = wake
        self._stamps: dict[tuple[str, str, str], Stamp] = {}
        self._made: dict[tuple[str, str, str], Stamp] = {}

    def stamp(self, resource: Resource, namespace: str, name: str) -> Stamp | None:
        """The object as it is; None: there is none."""
        return self._stamps.get((resource.plural, namespace, name))

    def known(self, resource: Resource, namespace: str | None) -> list[Object]:
        """All of a kind, of one namespace or (None) of all."""
        return [
            {"metadata": {"namespace": place, "name": name, "uid": stamp.uid}}
            for (plural, place, name), stamp in self._stamps.items()
            if plural == resource.plural and namespace in (None, place)
        ]

    def put(self, resource: Resource, thing: Object) -> None:
        """An object is there, or changed."""
        key, new = _key(resource, thing), stamp_of(thing)
        before = self._stamps.get(key)
        self._stamps[key] = new
        # That one is not as it was made is news once, however often it is changed from then on.
        if before != new and before is not None and before == self._made.get(key):
            self._wake(_job(thing))

    def made(self, resource: Resource, thing: Object) -> Stamp:
        """An object was just made, or made what it should be, which is no news for who did so."""
        key = _key(resource, thing)
        self._stamps[key] = self._made[key] = stamp_of(thing)
        return self._made[key]

    def drop(self, resource: Resource, thing: Object) -> None:
        """An object is gone; another that has its name by now stays."""
        key = _key(resource, thing)
        before = self._stamps.get(key)
        if before is not None and before.uid == thing["metadata"]["uid"]:
            del self._stamps[key]
            self._made.pop(key, None)
            self._wake(_job(thing))


def _key(resource: Resource, thing: Object) -> tuple[str, str, str]:
    return resource.plural, thing["metadata"]["namespace"], thing["metadata"]["name"]


def _job(thing: Object) -> Key:
    """The job that it is of: as with pods, its name says so."""
    return thing["metadata"]["namespace"], thing["metadata"]["name"].rpartition("-")[0]
