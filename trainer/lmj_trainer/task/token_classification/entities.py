"""Entities by the tags of words: B- begins one, I- goes on, O is outside of all. As CoNLL's evaluation finds them."""

from __future__ import annotations

from collections.abc import Sequence

Entity = tuple[int, int, str]
"""The first word, the one after the last, and the kind."""


def are_tags(labels: Sequence[str]) -> bool:
    """Whether ``labels`` name entities: all are ``O``, ``B-...`` or ``I-...``, and not ``O`` alone."""
    return set(labels) != {"O"} and all(label == "O" or label.startswith(("B-", "I-")) for label in labels)


def entities(tags: Sequence[str]) -> set[Entity]:
    """Those of a row. An ``I-`` that follows no word of its kind begins one too."""
    found: set[Entity] = set()
    begin, kind = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        mark, _, name = tag.partition("-")
        if kind and (mark != "I" or name != kind):
            found.add((begin, place, kind))
            kind = ""
        if name and not kind:
            begin, kind = place, name
    return found
