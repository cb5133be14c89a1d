"""What two memories have in common, and where it lies in each."""

from __future__ import annotations

import numpy as np
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


def elements(spans: list[slice]) -> np.ndarray:
    """The numbers of all elements in ``spans``, span by span."""
    return np.concatenate([np.arange(0), *(np.arange(span.start, span.stop) for span in spans)])


@given(COUNTS, st.data())
def test_units_and_spans_are_all_of_a_share_once(counts: list[int], data: st.DataObject) -> None:
    whole = laid_out([str(i) for i in range(len(counts))], {str(i): count for i, count in enumerate(counts)})
    some = [each for each in whole if data.draw(st.booleans())]
    share = Share(some)
    there = elements([slice(each.start, each.stop) for each in some])
    assert np.array_equal(elements(share.units), there)
    assert np.array_equal(elements(share.runs), there)
    assert share.size == len(there)
    units = data.draw(st.integers(0, len(share.units)))
    spans = share.spans(units, 1000)
    assert np.array_equal(elements(spans), elements(share.units[:units]))
    assert all(span.stop - span.start <= 1000 for span in spans)
    for each in some:
        assert np.array_equal(elements([part for _, part in each.units]), np.arange(each.count))
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
    # Every element, and the zeros behind.
    where = elements([slice(mine[each.name].start, mine[each.name].start + each.stop - each.start) for each in theirs])
    found = translation.here(slice(start, stop))
    first = [start + part.start for _, part in found]
    asked = elements([slice(begin, begin + here.stop - here.start) for begin, (here, _) in zip(first, found, strict=True)])
    in_order = np.argsort(asked)
    assert np.array_equal(asked[in_order], np.arange(start, stop)), "each of them once"
    assert np.array_equal(elements([here for here, _ in found])[in_order], where[start:stop])
    if order == list(sizes):
        assert len(translation.here(slice(0, theirs[-1].stop))) == 1, "what lies as there is one piece"
