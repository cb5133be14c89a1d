"""Values of any kind, those on the edges more often than others; and values as a structural schema wants them."""

from random import Random
from typing import Any

Schema = dict[str, Any]

WHOLE = (0, 1, -1, 2, 7, 63, 64, 65, 255, 1023, 1024, 1025, 4096, 2**31, 2**53, 2**63 - 1, -(2**63))
FRACTIONS = (0.0, 0.5, -1.5, 1e-9, 5e-324, 1e15, 1e308, -1e308)
TEXTS = (
    "",
    "a",
    "trainer",
    "/output",
    "Never",
    "../../etc/passwd",
    "s3://bucket/../x",
    "$(POD_IP)",
    "a\nb\r\x1b[2J",
    "\u202egnp.exe",
    "\U0001f600" * 40,
    "1e999999999",
    "9" * 400,
    "-1",
    "null",
    "0,1 to=node-1",
    "a+a+a+a+b|a+a+a+a+c",
    "(a+)+b",
    "[^\u0100-\U0010ffff]{50}",
    "a" * 254,
    "a" * 5000,
    "2026-01-01T00:00:00Z",
    "train.py:__main__",
)
TIMES = (
    "2026-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "2026-01-01T00:00:00+14:00",
    "1969-12-31T23:59:60Z",
)
NAMES = (
    "name", "spec", "metadata", "labels", "containers", "env", "value", "valueFrom", "volumes", "mountPath", "key", "items",
    "image", "command", "resources", "limits", "$ref", "__proto__", "", "a.b/c", "lmj.dev/spec", "x" * 70,
)  # fmt: skip
"""Of fields."""


def scalar(random: Random) -> Any:
    """No list and no object."""
    return random.choice([None, True, False, random.choice(WHOLE), random.choice(FRACTIONS), *random.choices(TEXTS, k=3)])


def anything(random: Random, levels: int = 4) -> Any:
    """Any value of a few parts."""
    kind = random.random()
    if levels == 0 or kind < 0.5:
        return scalar(random)
    if kind < 0.7:
        return [anything(random, levels - 1) for _ in range(random.randrange(4))]
    return {random.choice(NAMES): anything(random, levels - 1) for _ in range(random.randrange(4))}


def of_schema(random: Random, schema: Schema, part: float = 0.2) -> Any:
    """A value that ``schema`` takes, as far as it says it of one field alone; of fields that may be left out about ``part`` are there."""
    if schema.get("nullable") and random.random() < 0.05:
        return None
    if "enum" in schema:
        return random.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            return _mapping(random, schema, part)
        case "array":
            few = schema.get("minItems", 0)
            most = max(few, min(schema.get("maxItems", few + 3), few + 3))
            return [of_schema(random, schema["items"], part) for _ in range(random.randint(few, most))]
        case "integer":
            return _within(random, schema, WHOLE, 1)
        case "number":
            return _within(random, schema, (*FRACTIONS, *WHOLE[:6]), 0.01)
        case "boolean":
            return random.random() < 0.5
        case "string":
            return _text(random, schema)
    return anything(random, 2)


def _mapping(random: Random, schema: Schema, part: float) -> Any:
    if "properties" in schema:
        required = schema.get("required", ())
        return {
            name: of_schema(random, field, part)
            for name, field in schema["properties"].items()
            if name in required or random.random() < part
        }
    values = schema.get("additionalProperties")
    if not isinstance(values, dict):
        return {random.choice(NAMES): anything(random, 3) for _ in range(random.randrange(4))}
    return {random.choice(("0", "1", "s", *NAMES)): of_schema(random, values, part) for _ in range(random.randrange(3))}


def _within(random: Random, schema: Schema, known: tuple[float, ...], least_step: float) -> float:
    """One of the ``known``, or on a bound of the schema."""
    low: float | None = schema.get("minimum")
    high: float | None = schema.get("maximum")
    if low is not None and schema.get("exclusiveMinimum"):
        low += least_step
    fitting = [value for value in known if (low is None or value >= low) and (high is None or value <= high)]
    return random.choice([*fitting, *(bound for bound in (low, high) if bound is not None)] or [1])


def _text(random: Random, schema: Schema) -> str:
    if schema.get("format") == "date-time":
        return random.choice(TIMES)
    text = random.choice((*TEXTS, "a", "b1", "data/a.csv", "out", "x-1"))
    least: int = schema.get("minLength", 0)
    most: int | None = schema.get("maxLength")
    return (text + "a" * max(0, least - len(text)))[:most]
