"""Reading a document that somebody else's tools made: typed look-ups, with one clear line for what is not as it should be."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmj_api.problems import kind_of, show
from lmj_operator.convert.notes import ConvertError

Object = dict[str, Any]

MOST_VALUES = 50_000
"""Values in a document once its aliases are written out."""
_DEEPEST = 64


def plain(document: object) -> object:
    """A copy of ``document`` as JSON can carry it, without nulls in mappings: to Kubernetes they are as if they were not there.

    Raises ConvertError for what JSON cannot carry, and for a document that is too deep or, with its aliases written out, too large.
    """
    left = [MOST_VALUES]

    def copy(value: object, where: str, depth: int) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise ConvertError(f"more than {MOST_VALUES} values with its aliases written out: that is no job's file")
        if depth > _DEEPEST:
            raise ConvertError(f"{where[:60]}: nested deeper than {_DEEPEST} levels")
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise ConvertError(f"{where or 'the document'}: the key {show(key)} is no text; put it in quotes")
            return {key: copy(item, _join(where, key), depth + 1) for key, item in value.items() if item is not None}
        if isinstance(value, list | tuple):
            return [copy(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
        if isinstance(value, float) and not math.isfinite(value):
            raise ConvertError(f"{where}: {value} is no finite number")
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ConvertError(f"{where}: {show(value)} is read as a {type(value).__name__}; put it in quotes")

    return copy(document, "", 0)


def mapping(value: Mapping[str, Any], key: str, where: str) -> Object:
    """The mapping ``key`` of ``value``, empty where there is none. Raises ConvertError."""
    found = value.get(key, {})
    if not isinstance(found, dict):
        raise ConvertError(f"{_join(where, key)}: a mapping is needed, not {kind_of(found)}")
    return found


def objects(value: Mapping[str, Any], key: str, where: str) -> list[Object]:
    """The list of mappings ``key`` of ``value``, empty where there is none. Raises ConvertError."""
    return _list(value, key, where, dict, lambda item: f"a mapping is needed, not {kind_of(item)}")


def named(value: Mapping[str, Any], key: str, where: str) -> list[Object]:
    """The same of a list whose items each have a ``name`` that is text. Raises ConvertError."""
    found = objects(value, key, where)
    for index, item in enumerate(found):
        if not isinstance(item.get("name"), str):
            raise ConvertError(f"{_join(where, key)}[{index}].name: text is needed, not {kind_of(item.get('name'))}")
    return found


def texts(value: Mapping[str, Any], key: str, where: str) -> list[str]:
    """The list of texts ``key`` of ``value``, empty where there is none. Raises ConvertError."""
    return _list(value, key, where, str, lambda item: f"text is needed, not {kind_of(item)}; put it in quotes")


def text(value: Mapping[str, Any], key: str, where: str) -> str | None:
    """The text ``key`` of ``value``; None: it is not there. Raises ConvertError."""
    found = value.get(key)
    if found is not None and not isinstance(found, str):
        raise ConvertError(f"{_join(where, key)}: text is needed, not {kind_of(found)}; put it in quotes")
    return found


def number(value: Mapping[str, Any], key: str, where: str, least: int = 0) -> int | None:
    """The whole number ``key`` of ``value``, at least ``least``; None: it is not there. Raises ConvertError."""
    found = value.get(key)
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool):
        raise ConvertError(f"{_join(where, key)}: a whole number is needed, not {show(found)}")
    if found < least:
        raise ConvertError(f"{_join(where, key)}: {found} is less than {least}")
    return found


def _list(value: Mapping[str, Any], key: str, where: str, kind: type, wrong: Callable[[object], str]) -> list[Any]:
    """The list ``key`` of ``value``, whose items are all of ``kind``; ``wrong``: what is said of one that is not."""
    found = value.get(key, [])
    if not isinstance(found, list):
        raise ConvertError(f"{_join(where, key)}: a list is needed, not {kind_of(found)}")
    for index, item in enumerate(found):
        if not isinstance(item, kind):
            raise ConvertError(f"{_join(where, key)}[{index}]: {wrong(item)}")
    return found


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def differing(one: object, other: object, where: str = "", most: int = 5) -> list[str]:
    """Where ``one`` and ``other`` differ, ``most`` places at most."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found: list[str] = []
        for key in dict.fromkeys((*one, *other)):
            found += differing(one.get(key), other.get(key), _join(where, key), most)
        return found[:most]
    if _is_list(one) and _is_list(other) and len(one) == len(other):  # type: ignore[arg-type] # _is_list says that they are
        pairs = enumerate(zip(one, other, strict=True))  # type: ignore[call-overload] # the same
        return [place for index, (a, b) in pairs for place in differing(a, b, f"{where}[{index}]", most)][:most]
    return [] if one == other else [where]


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
