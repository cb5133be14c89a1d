"""What an API server does with a CRD, as far as tests need it: is it structural, what are its defaults, does a value fit."""

import re
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

ALLOWED = {
    "additionalProperties",
    "default",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "nullable",
    "pattern",
    "properties",
    "required",
    "type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
}
"""Keys that the generator may write; all others (``$ref``, ``anyOf``, ``const``, ``title``, ``uniqueItems``...) are refused."""
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema in ``schema`` with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def not_structural(schema: Schema) -> list[str]:
    """What an API server would refuse in ``schema``, one line each."""
    wrong = []
    for path, node in nodes(schema):
        wrong += [f"{path}: {key} is not allowed" for key in node.keys() - ALLOWED]
        if node.get("type") not in TYPES:
            wrong.append(f"{path}: no type")
        if "properties" in node and "additionalProperties" in node:
            wrong.append(f"{path}: properties and additionalProperties")
        if node.get("type") == "array" and "items" not in node:
            wrong.append(f"{path}: an array without items")
        for bound in ("exclusiveMinimum", "exclusiveMaximum"):
            if bound in node and not isinstance(node[bound], bool):
                wrong.append(f"{path}: {bound} is no boolean")
        if node.get("x-kubernetes-list-type") == "map":
            item = node["items"]
            wrong += [
                f"{path}: key {key} is neither required nor defaulted"
                for key in node["x-kubernetes-list-map-keys"]
                if key not in item.get("required", []) and "default" not in item["properties"][key]
            ]
        wrong += [
            f"{path}: {name} is required but unknown" for name in node.get("required", []) if name not in node["properties"]
        ]
    return wrong


def defaulted(value: Any, schema: Schema) -> Any:
    """``value`` with defaults filled in as an API server does: from the outside in, null kept where it is allowed."""
    if isinstance(value, dict) and "properties" in schema:
        properties = schema["properties"]
        kept = {k: v for k, v in value.items() if v is not None or k not in properties or properties[k].get("nullable")}
        added = {k: child["default"] for k, child in properties.items() if k not in kept and "default" in child}
        return {k: defaulted(v, properties[k]) if k in properties else v for k, v in (kept | added).items()}
    if isinstance(value, list) and "items" in schema:
        return [defaulted(item, schema["items"]) for item in value]
    return value


def misfits(value: Any, schema: Schema, path: str = "") -> list[str]:
    """Why ``value`` does not fit ``schema``, one line each; CEL rules are left out."""
    if value is None:
        return [] if schema.get("nullable") else [f"{path}: null"]
    if not isinstance(value, TYPES[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean"):
        return [f"{path}: {value!r} is no {schema['type']}"]
    wrong = []
    if "enum" in schema and value not in schema["enum"]:
        wrong.append(f"{path}: {value!r} is not one of {schema['enum']}")
    if isinstance(value, int | float):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        if (
            value < low
            or value > high
            or (schema.get("exclusiveMinimum") and value == low)
            or (schema.get("exclusiveMaximum") and value == high)
        ):
            wrong.append(f"{path}: {value} is out of bounds")
    if isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            wrong.append(f"{path}: length {len(value)}")
        if "pattern" in schema and not re.search(schema["pattern"], value):
            wrong.append(f"{path}: {value!r} does not match")
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            wrong.append(f"{path}: {len(value)} items")
        wrong += [line for i, item in enumerate(value) for line in misfits(item, schema["items"], f"{path}[{i}]")]
    if isinstance(value, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        properties = schema.get("properties", {})
        wrong += [f"{path}.{name}: missing" for name in schema.get("required", []) if name not in value]
        for name, item in value.items():
            child = properties.get(name, schema.get("additionalProperties"))
            wrong += [f"{path}.{name}: unknown"] if child is None else misfits(item, child, f"{path}.{name}")
    return wrong
