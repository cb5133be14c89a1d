"""Write the reference of a job's fields as Markdown: ``reference.py FILE``, or ``reference.py --check FILE`` to fail when it is stale."""

import sys
from collections.abc import Iterable, Iterator

from generated import refresh

from lmj_api.explain import Entry, entries
from lmj_api.names import API_VERSION, KIND

HEAD = f"""<!-- Generated from crds/lmj_api by `make reference`: change the models, not this file. -->
# Field reference

All fields of a job's `spec` (`apiVersion: {API_VERSION}`, `kind: {KIND}`). `lmj run` and the API server check
the same rules. `lmj explain training.threads` prints the entry of one field, and `kubectl explain
lmj.spec.training.threads` does so on a cluster.

A *mapping* has the fields below it; the items of a list are written with `[]`. Durations are in seconds.
"""


def page(fields: Iterable[Entry]) -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections(list(fields))])


def _sections(fields: list[Entry]) -> Iterator[str]:
    whole, *rest = fields
    parts = [each for each in rest if "." not in each.path]
    alone = [each for each in parts if not _below(rest, each)]
    yield "## spec\n"
    yield from _table(alone)
    for each in [whole, *alone]:
        yield from _rules(each)
    for part in parts:
        if part not in alone:
            below = _below(rest, part)
            yield f"## {part.path}\n"
            yield f"{part.description}\n"
            yield from _table(below)
            for each in [part, *below]:
                yield from _rules(each)


def _below(fields: Iterable[Entry], part: Entry) -> list[Entry]:
    return [each for each in fields if each.path.startswith((f"{part.path}.", f"{part.path}[]."))]


def _table(fields: Iterable[Entry]) -> Iterator[str]:
    yield "| Field | Type, default | Meaning |"
    yield "|---|---|---|"
    for each in fields:
        yield f"| `{each.path}` | {_cell(each.about)} | {_cell(each.description)} |"
    yield ""


def _rules(field: Entry) -> Iterator[str]:
    if field.rules:
        yield f"Rules{f' of `{field.path}`' if field.path else ''}:\n"
        yield from (f"- {rule}." for rule in field.rules)
        yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 when ``--check`` finds the file stale."""
    text = page(entries())
    return refresh(arguments, lambda _: text, "is stale: run `make reference`")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
