"""From what is written in Python to what a job's file says, and messages about that back."""

import re
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import PurePath

from lmj_api.base import Message
from lmj_api.fields import FieldType, field_type
from lmj_api.spec import LiveMigrationJob

_OPTIONS = {
    "add --set spec.suspend=false": "set suspend=False",
    "--fresh": "fresh=True",
    "--continue": "goes_on=True",
    "--replicas": "replicas",
    "--stages": "stages",
    "the same command": "the same call",
}
"""How messages of the command name what the functions here call otherwise."""
_WORD = re.compile(r"\b(?:spec|metadata)\.(?=[a-z])|\b[a-z]+(?:[A-Z][a-z0-9]*)+\b")


def written(value: object, kind: FieldType) -> object:
    """``value`` of type ``kind`` as a parsed file has it: fields in camelCase, those that were set; no models, paths and enumerations."""
    match value:
        case Message():
            fields = type(value).model_fields
            set_here = {fields[name].alias or name: getattr(value, name) for name in fields if name in value.model_fields_set}
            return {name: written(item, kind.child(name)) for name, item in set_here.items()}
        case Mapping():
            names = _aliases(kind)
            renamed = {names.get(key, key) if isinstance(key, str) else key: item for key, item in value.items()}
            return {key: written(item, kind.child(str(key))) for key, item in renamed.items()}
        case Enum():
            return value.value
        case PurePath():
            return str(value)
        case list() | tuple():
            return [written(item, kind.item()) for item in value]
    return value


def told(line: str) -> str:
    """A message about a job's file, or of the command, as one about a job in Python: ``training.batch_size``."""
    for option, argument in _OPTIONS.items():
        line = line.replace(option, argument)
    return _WORD.sub(lambda match: _names().get(match[0], "" if match[0].endswith(".") else match[0]), line)


def _aliases(kind: FieldType) -> dict[str, str]:
    """From fields in snake_case to their names in a file; empty for what has keys of the user's choice."""
    return {} if kind.model is None else {name: info.alias or name for name, info in kind.model.model_fields.items()}


@cache
def _names() -> dict[str, str]:
    """From fields of jobs in camelCase to their names in Python."""
    found: dict[str, str] = {}
    rest = [field_type(LiveMigrationJob)]
    while rest:
        kind = rest.pop()
        found |= {alias: name for name, alias in _aliases(kind).items()}
        children = [kind.child(name) for name in kind.fields]
        rest += [child.item() if child.is_list else child for child in children]
    return {alias: name for alias, name in found.items() if alias != name}
