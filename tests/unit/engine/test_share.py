"""What two memories have in common, and where it lies in each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmj_trainer.state.share import ALIGN, CHUNK, Placed, Share, Translation

COUNTS = st.lists(st.integers(1, 3 * CHUNK // 2), min_size=1, max_size=8)


def laid_out(names: list[str], counts: dict[str, int]) -> list[Placed]:
    """One after the other, as in a stage's arrays."""
    placed: list[Placed] = []
    for name in names:
        placed.append(Placed(name, (counts[name],), placed[-1].stop if placed else 0))
    return placed


def elements(spans: list[slice]) -> list[int]:
    return [i for span in spans for i in range(span.start, span.stop)]


@given(COUNTS, st.data())
def test_units_and_spans_are_all_of_a_share_once(counts: list[int], data: st.DataObject) -> None:
    whole = laid_out([str(i) for i in range(len(counts))], {str(i): count for i, count in enumerate(counts)})
    some = [each for each in whole if data.draw(st.booleans())]
    share = Share(some)
    there = elements([slice(each.start, each.stop) for each in some])
    assert elements(share.units) == elements(share.runs) == there
    assert share.size == len(there)
    units = data.draw(st.integers(0, len(share.units)))
    spans = share.spans(units, 1000)
    assert elements(spans) == elements(share.units[:units])
    assert all(span.stop - span.start <= 1000 for span in spans)
    for each in some:
        assert [i for _, part in each.units for i in range(part.start, part.stop)] == list(range(each.count))
        assert all(span.start - each.start == part.start for span, part in each.units)
        assert (each.stop - each.start) % ALIGN == 0


@given(COUNTS, st.randoms(), st.integers(0, 4 * CHUNK), st.integers(1, 4 * CHUNK))
def test_a_span_lies_here_where_its_parameters_do(counts: list[int], random: object, start: int, length: int) -> None:
    sizes = {str(i): count for i, count in enumerate(counts)}
    theirs = laid_out(list(sizes), sizes)
    order = list(sizes)
    random.shuffle(order)  # type: ignore[attr-defined]
    mine = {each.name: each for each in laid_out(order, sizes)}
    translation = Translation(theirs, list(mine.values()))
    stop = min(start + length, theirs[-1].stop)
    where = {
        each.start + i: mine[each.name].start + i for each in theirs for i in range(each.stop - each.start)
    }  # every element, and the zeros behind
    found: dict[int, int] = {}
    for here, part in translation.here(slice(start, stop)):
        for i in range(here.stop - here.start):
            found[start + part.start + i] = here.start + i
    assert found == {i: where[i] for i in range(start, stop)}
    if order == list(sizes):
        assert len(translation.here(slice(0, theirs[-1].stop))) == 1, "what lies as there is one piece"
