"""pydantic's errors in words for people: where, what, what to do."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from lmj_api.fields import ANY, FieldType, field_type
from lmj_api.nearest import did_you_mean, nearest
from lmj_api.problems import kind_of, show, shown_key
from lmj_api.spec.job import LiveMigrationJob

_RENAMED = {"spec.recovery.replica": "spec.recovery.hotStandby"}
"""Fields that had another name before v1."""
_NEEDED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
_OTHER_NAMES = {
    "bf16": "BFloat16",
    **dict.fromkeys(("fp16", "half", "amp"), "Float16"),
    **dict.fromkeys(("fp32", "single"), "Float32"),
    **dict.fromkeys(("gpu", "cuda:0"), "CUDA"),
}
"""What other tools call a choice."""
_BOUNDS = {
    "greater_than_equal": ("too small", "at least", "ge"),
    "greater_than": ("too small", "more than", "gt"),
    "less_than_equal": ("too large", "at most", "le"),
    "less_than": ("too large", "less than", "lt"),
}


_MOST = 50
"""Mistakes that are put into words: to find the right name for a wrong one takes a millisecond, and a file may have a hundred thousand."""


def complaints(error: ValidationError) -> list[str]:
    """One line for each mistake in a job, in the order of the file's fields, but for those that are too many.

    A field that is missing because its name is misspelt is told once.
    """
    found = error.errors(include_url=False)[:_MOST]
    misspelt = set()
    for item in found:
        if item["type"] == "extra_forbidden":
            *parent, name = item["loc"]
            near = nearest(str(name), _type_at(parent).fields)
            misspelt.add((*parent, near))
    return [_complaint(item) for item in found if item["type"] != "missing" or item["loc"] not in misspelt]


def unknown_field(path: Sequence[str | int], parent: FieldType) -> str:
    """``path: unknown field``, and what was meant: a field spelt like it, the place where this field belongs, or all fields of ``parent``."""
    name = str(path[-1])
    if (now := _RENAMED.get(dotted(path))) is not None:
        return f"{dotted(path)}: is called {now} now"
    near = nearest(name, parent.fields)
    places = [place for place in field_type(LiveMigrationJob).paths() if place.rsplit(".", 1)[-1] == name]
    if places and (near is None or near.lower() != name.lower()):
        hint = f"; did you mean {places[0]}?"
    elif near is not None:
        hint = f"; did you mean {near}?"
    else:
        hint = f"; known here: {', '.join(parent.fields)}"
    return f"{dotted(path)}: unknown field{hint}"


def dotted(path: Sequence[str | int]) -> str:
    """A path as users write it: ``spec.dataset.text[0]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{shown_key(part)}" for part in path).removeprefix(".")


def _complaint(item: Mapping[str, Any]) -> str:
    kind, path, value = item["type"], item["loc"], item["input"]
    context = item.get("ctx", {})
    where, here = dotted(path), _type_at(path)
    if kind == "extra_forbidden":
        return unknown_field(path, _type_at(path[:-1]))
    if kind == "missing":
        info = _type_at(path[:-1]).fields.get(str(path[-1]))
        about = f" ({' '.join(info.description.split())})" if info is not None and info.description else ""
        return f"{where}: missing{about}"
    if kind == "value_error":
        return f"{where}: {context['error']}"
    if kind in ("enum", "literal_error"):
        near = did_you_mean(_OTHER_NAMES.get(value.lower(), value), here.choices) if isinstance(value, str) else ""
        return f"{where}: {show(value)} is not one of {', '.join(here.choices)}{near}"
    if kind in _BOUNDS:
        what, need, key = _BOUNDS[kind]
        return f"{where}: {show(value)} is {what}; {need} {context[key]} is needed"
    if kind in _NEEDED:
        info = _type_at(path[:-1]).fields.get(str(path[-1])) if path else None
        return f"{where}: {_wrong_type(value, _NEEDED[kind], here, info is not None and info.is_required())}"
    if kind == "string_too_short":
        return f"{where}: must not be empty"
    if kind == "string_pattern_mismatch":
        return f"{where}: {show(value)} does not match {context['pattern']}" + (
            " (lower-case letters, digits and '-')" if path == ("metadata", "name") else ""
        )
    if kind in ("too_short", "too_long"):
        few = kind == "too_short"
        limit = context["min_length" if few else "max_length"]
        return f"{where}: {context['actual_length']} items; {'at least' if few else 'at most'} {limit} are needed"
    return f"{where}: {item['msg']}"


def _wrong_type(value: object, needed: str, here: FieldType, required: bool) -> str:
    if needed == "text" and not isinstance(value, dict | list | None):
        return f"{show(value)} is {kind_of(value)}; text is needed (put it in quotes)"
    if needed == "a list" and isinstance(value, str):
        return f"{show(value)} is text; a list is needed: [{value}]"
    if value is None:
        if here.model is None:
            return f"{needed} is needed" + ("" if required else "; leave the field out for its default")
        inside = [name for name, info in here.fields.items() if info.is_required()]
        return (
            f"empty; it needs {', '.join(inside)}"
            if inside
            else "empty; give it fields" + ("" if required else " or leave it out")
        )
    if isinstance(value, str):
        return f"{show(value)} is text; {needed} is needed"
    return f"{needed} is needed, not {show(value)}"


def _type_at(path: Sequence[str | int]) -> FieldType:
    kind = field_type(LiveMigrationJob)
    for part in path:
        kind = kind.item() if isinstance(part, int) else kind.child(part)
        if kind is ANY:
            break
    return kind
