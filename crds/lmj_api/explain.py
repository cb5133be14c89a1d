"""What a field of a job is, told from the schema: its type, bounds, default and description."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from lmj_api.complaints import unknown_field
from lmj_api.fields import field_type
from lmj_api.problems import SpecError
from lmj_api.schema import RULES, Schema, crd
from lmj_api.spec.job import JobSpec, LiveMigrationJob

_TYPES = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text", "object": "mapping"}


@cache
def _schema() -> Schema:
    schema: Schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def explain(path: str) -> list[str]:
    """Lines about the field at ``path`` (``training.threads``, with or without ``spec.``; empty: the whole spec). Raises SpecError."""
    names = [name for name in path.strip().replace("[]", "").split(".") if name]
    if not names or names[0] not in field_type(LiveMigrationJob).fields:
        names = ["spec", *names]
    schema = _schema()
    kind, required = field_type(LiveMigrationJob), False
    for place, name in enumerate(names):
        inside = _item(schema).get("properties", {})
        if name not in inside or (kind.model is not None and name not in kind.fields):
            raise SpecError(unknown_field(names[: place + 1], kind))
        required = name in _item(schema).get("required", ())
        schema, kind = inside[name], kind.child(name)
        kind = kind.item() if kind.is_list else kind
    lines = [f"{'.'.join(names)}: {_about(schema, required)}"]
    lines += [f"  {line}" for line in schema.get("description", "").replace("``", "`").splitlines()]
    lines += [
        f"  {'On a cluster' if 'oldSelf' in rule else 'Rule'}: {text}." for rule, text in RULES.get(".".join(names[1:]), ())
    ]
    fields = _item(schema).get("properties", {})
    needed = _item(schema).get("required", ())
    width = max((len(name) for name in fields), default=0)
    lines += [""] if fields else []
    lines += [f"  {name:<{width}}  {_about(field, name in needed)}. {_first(field)}".rstrip() for name, field in fields.items()]
    return lines


@dataclass(frozen=True, slots=True)
class Entry:
    """One field of the spec."""

    path: str
    """Without ``spec.``; a list's items have ``[]``: ``placement.stages[].stage``."""
    about: str
    """Type, bounds and default."""
    description: str
    """On one line."""
    rules: tuple[str, ...]
    """What must hold between the fields below it."""


def entries() -> Iterator[Entry]:
    """All fields of the spec, each before those below it; the first is the spec itself, with an empty path."""
    schema = _schema()
    yield from _entries("", schema["properties"]["spec"], True)


def _entries(path: str, schema: Schema, required: bool) -> Iterator[Entry]:
    description = " ".join(schema.get("description", "").replace("``", "`").split())
    rules = tuple(
        f"{'On a cluster: ' if 'oldSelf' in rule else ''}{text}" for rule, text in RULES.get(path.replace("[]", ""), ())
    )
    yield Entry(path, _about(schema, required), description, rules)
    inside = _item(schema)
    below = f"{path}{'[]' if 'items' in schema else ''}." if path else ""
    for name, field in inside.get("properties", {}).items():
        yield from _entries(below + name, field, name in inside.get("required", ()))


def paths() -> Iterator[str]:
    """The paths of all fields of the spec."""
    return field_type(JobSpec).paths()


def _item(schema: Schema) -> Schema:
    """The schema of a list's items; that of anything else itself."""
    items: Schema = schema.get("items", schema)
    return items


def _about(schema: Schema, required: bool) -> str:
    parts = [_type(schema)]
    if required:
        parts.append("required")
    elif schema.get("default") not in (None, {}, []):
        parts.append(f"default {_shown(schema['default'])}")
    elif schema.get("nullable"):
        parts.append("unset by default")
    return ", ".join(parts)


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema["type"] == "array":
        few, most = schema.get("minItems"), schema.get("maxItems")
        return f"list of {_type(schema['items'])}" + _span(few, most)
    low, high = schema.get("minimum"), schema.get("maximum")
    if schema["type"] in ("integer", "number"):
        open_low, open_high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        return _TYPES[schema["type"]] + _bounds(low, high, bool(open_low), bool(open_high))
    if "additionalProperties" in schema:
        return "mapping of texts"
    return _TYPES[str(schema["type"])]


def _bounds(low: Any, high: Any, open_low: bool, open_high: bool) -> str:
    if low is not None and high is not None and not open_low and not open_high:
        return f" from {low} to {high}"
    above = f" {'more than' if open_low else 'at least'} {low}" if low is not None else ""
    below = f" {'less than' if open_high else 'at most'} {high}" if high is not None else ""
    return above + (" and" if above and below else "") + below


def _span(few: Any, most: Any) -> str:
    if few is None and most is None:
        return ""
    return f" ({few or 0} to {most} items)" if most is not None else f" (at least {few} items)"


def _shown(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case list():
            return f"a list of {len(value)}"
        case _:
            return str(value)


def _first(schema: Schema) -> str:
    """The first sentence of the description."""
    text = " ".join(schema.get("description", "").replace("``", "`").split())
    return text.split(". ", 1)[0].rstrip(".") + "." if text else ""
