"""Looks through the footers of all files of a source. No row is read for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmj_trainer.data.ticker import Ticker
from lmj_trainer.errors import UserError
from lmj_trainer.store.ranges import ahead
from lmj_trainer.streaming.footer import read_footer
from lmj_trainer.streaming.index import File, Index
from lmj_trainer.streaming.source import FIELD, Source, asking

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmj_api.spec import JobSpec
    from lmj_trainer.streaming.footer import Footer

_AT_ONCE = 8
"""Files that are asked for at a time: each is two small requests."""
MOST_GROUPS = 1_000_000


def survey(spec: JobSpec, source: Source, say: Callable[[str], None]) -> Index:
    """The training rows of ``spec``, which are in ``source``. Raises UserError: something is wrong with them; OutageError: storage does not
    answer.
    """
    dataset, ticker = spec.dataset, Ticker(say)
    assert dataset.streaming is not None
    names = source.names()

    def look(name: str) -> tuple[File, Footer]:
        ref, called = source.file(name), source.called(name)
        with asking(FIELD, called):
            entry = ref.entry()
            footer = read_footer(ref, entry.size, dataset.columns, dataset.label, called)
        rows, sizes = tuple(group.rows for group in footer.groups), tuple(group.bytes for group in footer.groups)
        return File(name, entry.size, entry.tag, footer.digest, rows, sizes), footer

    files: list[File] = []
    first: Footer | None = None
    groups = 0
    for file, footer in ahead(look, names, _AT_ONCE):
        ticker.tick(f"looking at {source.uri}: file {len(files) + 1} of {len(names)}")
        first = first or footer
        if (footer.kinds, footer.names) != (first.kinds, first.names):
            raise UserError(
                f"{source.called(file.name)} has other types of columns, or other names of labels, than {source.called(files[0].name)}: "
                "write all files alike"
            )
        files.append(file)
        groups += len(file.rows)
        if groups > MOST_GROUPS:
            raise UserError(f"{FIELD} {source.uri}: has more than {MOST_GROUPS} row groups: write larger ones")
    index = Index(source.uri, tuple(files), first.names if first is not None else None)
    if not index.groups:
        raise UserError(f"{FIELD} {source.uri}: has no rows")
    index.require_room(dataset.streaming)
    return index
