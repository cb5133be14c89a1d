"""A job by its number: what is created, and what is done to it afterwards. The same number of the same seed is always the same."""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from hostile.good import SCRIPT, SPEC, STATUS, TEMPLATE
from hostile.mutations import mutated
from hostile.text import json_of, marked
from hostile.values import anything, of_schema, scalar
from lmj_api.names import API_VERSION, GROUP, KIND, MIGRATE
from lmj_api.schema import crd

SEEDS = Path(__file__).with_name("seeds")
LARGEST = 1_450_000
"""Bytes: with what an API server adds, as large as it takes."""
DEEPEST = 9_990
"""Levels of a template; an API server takes 10,000 of a whole object."""
MOST_PARTS = 100_000
"""Fields or items: each costs an API server some hundred bytes of memory."""
SMALLEST = 200
HEAVY_LEVELS, HEAVY_FIELDS = 2_100, 40_000


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is done to a job: a merge patch."""

    body: bytes
    of: str = ""
    """The subresource; empty: the object itself."""


@dataclass(frozen=True, slots=True)
class Case:
    """A job, and what is done to it."""

    name: str
    kind: str
    """What it is an example of."""
    body: bytes
    changes: tuple[Change, ...] = ()

    @property
    def heavy(self) -> bool:
        """Whether an API server needs half a minute of a core each time that its status is written."""
        texts = (self.body, *(change.body for change in self.changes))
        # What is deep ends with as many brackets.
        return any(len(text) - len(text.rstrip(b"}]")) > HEAVY_LEVELS or text.count(b'":') > HEAVY_FIELDS for text in texts)


def case(number: int, seed: int = 0) -> Case:
    """The ``number``-th of the ``seed``: the kept ones first, then those that are drawn."""
    kept = _kept()
    name = f"case-{number:05d}"
    if number < len(kept):
        return _of_file(name, *kept[number])
    random = Random(f"{seed}/{number}")
    draw = random.choices(list(_DRAWS), list(_DRAWS.values()))[0]
    spec = draw(random)
    changes = tuple(_change(random) for _ in range(random.choice((0, 0, 0, 1, 2, 4))))
    return Case(name, draw.__name__.strip("_"), _body(name, spec, random), changes)


def status(random: Random) -> Any:
    """A good one with some changes, or anything that the schema takes."""
    return mutated(random, STATUS, 2) if random.random() < 0.5 else of_schema(random, _schema("status"), 0.3)


def large(random: Random) -> dict[str, int]:
    """Something of which there is much, the more the rarer."""
    kind, most = random.choice(
        [("$text", LARGEST), ("$keys", MOST_PARTS), ("$items", MOST_PARTS), ("$deep", DEEPEST), ("$lists", DEEPEST)]
    )
    return marked(kind, int(SMALLEST * (most / SMALLEST) ** random.random()))


def _good(random: Random) -> dict[str, Any]:
    """A job as it should be, for what is done to it afterwards."""
    return {**SPEC, **({"template": {"spec": {"nodeSelector": {}}}} if random.random() < 0.3 else {})}


def _template(random: Random) -> dict[str, Any]:
    """A good template with some changes."""
    return {**random.choice((SPEC, SCRIPT)), "template": mutated(random, TEMPLATE, random.choice((1, 1, 2, 4)))}


def _anything(random: Random) -> dict[str, Any]:
    """A template of anything."""
    return {**SPEC, "template": {key: anything(random) for key in random.choice((["spec"], ["metadata", "spec"], ["x"]))}}


def _spec(random: Random) -> dict[str, Any]:
    """Some parts as the schema has them, or as it has them not."""
    spec, fields = copy.deepcopy(random.choice((SPEC, SPEC, SCRIPT))), _schema("spec")["properties"]
    for name in random.sample(sorted(set(fields) - {"template"}), random.randint(1, 3)):
        part = of_schema(random, fields[name])
        spec[name] = {**spec[name], **part} if isinstance(part, dict) and isinstance(spec.get(name), dict) else part
    return mutated(random, spec) if random.random() < 0.3 else spec


def _large(random: Random) -> dict[str, Any]:
    """Something large or deep in a place of a template."""
    small: dict[str, Any] = {"metadata": {}, "spec": {"containers": [{"name": "trainer"}]}}
    template = copy.deepcopy(TEMPLATE) if random.random() < 0.5 else small
    places: Sequence[dict[str, Any]] = (template, template["metadata"], template["spec"], template["spec"]["containers"][0])
    name = random.choice(("labels", "annotations", "env", "nodeSelector", "affinity", "volumes", "x", "command"))
    random.choice(places)[name] = large(random)
    return {**SPEC, "template": template}


_DRAWS = {_good: 15, _template: 35, _anything: 10, _spec: 28, _large: 12}
"""How often each is drawn, of a hundred."""


def _change(random: Random) -> Change:
    """A change of the spec or of the template, or of what others than the owner may write."""
    match random.choices(("spec", "template", "large", "metadata", "status", "scale"), (25, 25, 5, 15, 25, 5))[0]:
        case "spec":
            return _patch({"spec": _spec(random)})
        case "template":
            return _patch({"spec": {"template": random.choice((None, mutated(random, TEMPLATE, 2), anything(random)))}})
        case "large":
            return _patch({"spec": {"template": large(random)}})
        case "metadata":
            asked = random.choice(("0", "0,1 to=node-1", "1 now", str(scalar(random)), "9" * 5000))
            progress = {f"{GROUP}/job": str(scalar(random)), f"{GROUP}/touch-dummy": "{}"}
            return _patch({"metadata": {"annotations": {MIGRATE: asked, **progress}, "labels": {f"{GROUP}/job": "other"}}})
        case "status":
            return _patch({"status": status(random)}, "status")
    return _patch({"spec": {"replicas": random.choice((0, 1, 2, 5, 2000))}}, "scale")


def _patch(change: dict[str, Any], of: str = "") -> Change:
    return Change(json_of(change), of)


def _body(name: str, spec: Any, random: Random | None = None) -> bytes:
    metadata: dict[str, Any] = {"name": name}
    if random is not None and random.random() < 0.1:
        metadata["annotations"] = {MIGRATE: str(scalar(random)), "kopf.zalando.org/last-handled-configuration": "{"}
    return json_of({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})


@cache
def _schema(part: str) -> dict[str, Any]:
    """Of the spec, or of the status."""
    root = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found: dict[str, Any] = root["properties"][part]
    return found


@cache
def _kept() -> tuple[tuple[str, Any], ...]:
    """Examples that showed something once: the name of each file, and what is in it."""
    return tuple((file.stem, json.loads(file.read_text("utf-8"))) for file in sorted(SEEDS.glob("*.json")))


def _of_file(name: str, kind: str, content: dict[str, Any]) -> Case:
    """``spec``: fields over those of the good job, or with ``script`` of that one. ``changes``: each a merge patch of the object, or of its
    ``status`` or ``scale``.
    """
    changes = []
    for change in content.get("changes", ()):
        of = next((of for of in ("status", "scale") if of in change), "")
        changes.append(_patch({"spec": change["scale"]} if of == "scale" else change, of))
    spec = {**(SCRIPT if content.get("script") else SPEC), **content.get("spec", {})}
    return Case(name, kind, _body(name, spec), tuple(changes))
