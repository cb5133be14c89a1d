"""``--set PATH=VALUE``: change a field of a document before it is checked."""

import json
from collections.abc import Mapping, Sequence

from lmj_api.complaints import unknown_field
from lmj_api.fields import FieldType, field_type
from lmj_api.problems import SpecError, show
from lmj_api.spec.job import LiveMigrationJob

_TOP = frozenset(field_type(LiveMigrationJob).fields)


def override(document: Mapping[object, object], sets: Sequence[str]) -> dict[object, object]:
    """A copy of ``document`` with each ``PATH=VALUE`` of ``sets`` in place, later ones over earlier ones.

    PATH: ``training.batchSize``, with or without ``spec.`` before it. VALUE: text as it is where the field is text; else JSON,
    or a list without quotes (``[review,title]``). ``null`` unsets what may be unset.
    Raises SpecError for an unknown field (with the nearest right name) or a PATH that leads through a value.
    """
    changed = dict(document)
    for assignment in sets:
        path, equals, value = assignment.partition("=")
        if not equals or not path.strip():
            raise SpecError(f"--set {assignment}: write PATH=VALUE, as in --set training.batchSize=16")
        names = path.strip().split(".")
        if names[0] not in _TOP:
            names.insert(0, "spec")
        changed = _put(changed, names, value, field_type(LiveMigrationJob), [])
    return changed


def _put(node: object, names: list[str], text: str, kind: FieldType, above: list[str]) -> dict[object, object]:
    """``node`` with the field at ``names`` below it set; ``above`` says where ``node`` is."""
    if node is not None and not isinstance(node, Mapping):
        raise SpecError(f"--set {'.'.join([*above, *names])}: {'.'.join(above)} is {show(node)}, which has no fields")
    fields = dict(node or {})
    # The keys of labels and selectors hold dots themselves, so the rest of the path is the key.
    name, rest = (".".join(names), []) if kind.is_mapping and kind.child("").is_text else (names[0], names[1:])
    if kind.model is not None and not kind.open and name not in kind.fields:
        raise SpecError(unknown_field([*above, name], kind))
    child = kind.child(name)
    here = [*above, name]
    if rest and child.model is None and not child.is_mapping and not _free(child):
        raise SpecError(f"--set {'.'.join([*here, *rest])}: {'.'.join(here)} has no fields; set it as a whole")
    fields[name] = _put(fields.get(name), rest, text, child, here) if rest else _value(text, child)
    return fields


def _free(kind: FieldType) -> bool:
    return not (kind.is_text or kind.is_list or kind.is_float or kind.choices or kind.annotation in (int, bool))


def _value(text: str, kind: FieldType) -> object:
    """What ``text`` means for a field of type ``kind``; what does not fit is left for the check to complain about."""
    if kind.nullable and text == "null":
        return None
    if kind.is_text or kind.choices:
        return text
    try:
        return json.loads(text)
    except ValueError:
        if text.startswith("[") and text.endswith("]"):
            items = [item.strip() for item in text[1:-1].split(",")]
            return [_value(item, kind.item()) for item in items] if items != [""] else []
        return text
