"""What has too many parts is cut before it is parsed, is refused for it, and costs nobody else a long wait."""

import asyncio
import itertools
import json
import time
from typing import Any
from unittest import mock

import pytest
from cluster_jobs import job_body
from counted_turns import CountedTurns
from hypothesis import given
from hypothesis import strategies as st

from lmj_api.problems import SpecError
from lmj_operator.backend.kubernetes import trimming as module
from lmj_operator.backend.kubernetes.job_object import kept, packed_spec, refuse
from lmj_operator.backend.kubernetes.packed import unpacked
from lmj_operator.backend.kubernetes.trimming import EVENT, LONG, MOST, OBJECT, TURN, trimmed

TEXT = st.text(alphabet='ab"\\[]{},:é', max_size=5)
JSON = st.recursive(
    st.one_of(st.none(), st.integers(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=20,
)
PARTS = st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), st.dictionaries(TEXT, JSON, max_size=4))


def begins(value: Any, whole: Any) -> bool:
    """Whether ``value`` is ``whole``, or what comes first of it, in each of its parts that is the last."""
    if isinstance(value, dict) and isinstance(whole, dict):
        if list(value) != list(whole)[: len(value)]:
            return False
        value, whole = list(value.values()), list(whole.values())
    if isinstance(value, list) and isinstance(whole, list):
        return value[:-1] == whole[: max(0, len(value) - 1)] and (not value or begins(value[-1], whole[len(value) - 1]))
    return bool(value == whole)


@given(PARTS, st.integers(0, 6), st.booleans())
def test_a_field_is_cut_after_so_many_parts_and_all_others_are_as_they_were(parts: Any, most: int, in_event: bool) -> None:
    data = json.dumps({"type": "ADDED", "object": parts} if in_event else parts).encode()
    with mock.patch.object(module, "FEW", 0), mock.patch.object(module, "MOST", most):
        cut = json.loads(asyncio.run(trimmed(data, EVENT if in_event else OBJECT)))
    found = cut["object"] if in_event else cut
    assert found.keys() == parts.keys()
    for name, part in parts.items():
        assert found[name].keys() == part.keys()
        assert found[name] == part if name == "status" else all(begins(found[name][key], part[key]) for key in part)
    if most > 2 * sum(json.dumps(parts).count(mark) for mark in "[{,"):
        assert found == parts


LARGE = {
    "lists": "[" + ",".join(["[]"] * 450_000) + "]",
    "fields": "{" + ",".join(f'"k{number}":1' for number in range(100_000)) + "}",
    "texts": "[" + ",".join(['""'] * 450_000) + "]",
    "lists, and one that is deep": "[" + ",".join(["[]"] * 400_000) + "," + "[" * 900 + "]" * 900 + "]",
}


def large_job(template: str) -> bytes:
    body = job_body()
    body["spec"]["template"] = {"spec": "LARGE"}
    body["metadata"]["managedFields"] = [{"fieldsV1": "LARGE"}]
    body["status"] = {"phase": "Running", "message": "as it was"}
    return json.dumps(body).replace('"LARGE"', template).encode()


@pytest.mark.parametrize("template", LARGE.values(), ids=LARGE)
async def test_a_job_of_half_a_million_parts_is_refused_and_others_have_their_turns(template: str) -> None:
    data, rounds, over = large_job(template), list[float](), False

    async def look() -> None:
        while not over:
            rounds.append(time.thread_time())
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await asyncio.sleep(0)
    body = kept(await trimmed(data, OBJECT))
    over = True
    await looking
    assert (body["metadata"]["name"], body["status"]) == ("tiny", {"phase": "Running", "message": "as it was"})
    with pytest.raises(SpecError, match=r"^spec\.template: more than 10,000 values"):
        refuse(json.loads(unpacked(packed_spec(body["spec"]))))
    longest = max(after - before for before, after in itertools.pairwise(rounds))
    assert longest < (rounds[-1] - rounds[0]) / 3, "it is done in many rounds of the loop"


async def test_the_status_of_a_thousand_ranks_is_kept_whole() -> None:
    body = job_body()
    body["status"] = {"ranks": [{"rank": rank, "x": [[]] * 20} for rank in range(1024)]}
    data = json.dumps(body).encode()
    assert data.count(b"[") > MOST
    assert await trimmed(data, OBJECT) == data


async def test_of_many_long_texts_one_is_parsed_in_a_round_of_the_loop() -> None:
    rounds, done = 0, list[tuple[int, int]]()

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def parse(size: int) -> None:
        data = json.dumps({"x": "a" * size}).encode()
        assert await trimmed(data, OBJECT) == data
        done.append((size, rounds))

    counting = asyncio.create_task(count())
    await asyncio.gather(*(parse(size) for size in [LONG, LONG // 2] * 10))
    counting.cancel()
    assert len({at for size, at in done if size == LONG}) == 10
    assert len({at for size, at in done if size < LONG}) == 1, "what is short waits for none of them"


async def test_of_many_texts_of_too_many_parts_one_is_shortened_in_a_round_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = CountedTurns(monkeypatch, module)
    data = large_job(LARGE["lists"])
    tokens = data.count(b"[")
    await trimmed(data, OBJECT)
    assert turns.had >= tokens // TURN
