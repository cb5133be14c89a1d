"""Replicas of a pipeline take the steps that one takes, to the bit, whatever their number."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lmj_api.protocol import EventKind, WorkerPhase
from lmj_api.shards import under_way
from lmj_api.spec import LiveMigrationJob
from lmj_api.view import Resume, View
from lmj_trainer.group import group as group_module
from lmj_trainer.strategy.pipeline import exchange as exchange_module
from lmj_trainer.strategy.pipeline import pipeline as pipeline_module
from lmj_trainer.strategy.pipeline.exchange import Exchange
from lmj_trainer.transport.envelope import Kind
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.memory import MemoryTransport
from lmj_trainer.worker.trainer import Trainer

from .small_job import Line, at, draw_in_turn, elsewhere, losses, make, start, view, weights
from .test_commit import CUTS, NO_DROPOUT, Ranks, step

REPLICAS = [1, 2, 3, 4]


@pytest.fixture
def make_group(make_state: Callable[..., Any], make_config: Callable[..., Any]) -> Callable[..., Ranks]:
    return lambda cuts, **more: Ranks(make_state, make_config(**NO_DROPOUT), cuts, **more)


def taken(group: Ranks, steps: int = 3) -> tuple[list[Any], list[dict[str, torch.Tensor]]]:
    """What was committed, and the weights of each replica."""
    commits = [step(group, number, 0.1) for number in range(steps)]
    stages = group.groups[0].topology.stages
    whole = [
        {slot.name: slot.weight.clone() for state in group.states[first : first + stages] for slot in state.slots}
        for first in range(0, len(group.states), stages)
    ]
    return [(c[0].loss, c[0].grad_norm, c[0].coefficient) for c in commits], whole


@pytest.mark.integration
@pytest.mark.parametrize("cuts", CUTS[:2])
def test_any_number_of_replicas_takes_the_same_steps(make_group: Callable[..., Ranks], cuts: list[range]) -> None:
    expected, (weights,) = taken(make_group(CUTS[0], shards=4))
    for replicas in REPLICAS:
        facts, copies = taken(make_group(cuts, replicas=replicas, shards=4))
        assert facts == expected
        for copy in copies:
            assert all(torch.equal(copy[name], weight) for name, weight in weights.items())
    assert all(coefficient < 1 for _, _, coefficient in expected)


def test_shards_are_part_of_the_result(make_group: Callable[..., Ranks]) -> None:
    assert taken(make_group(CUTS[0], shards=4))[0] != taken(make_group(CUTS[0], shards=2))[0]


class Weighed:
    """Counts the elements of sums that a rank has in messages: sent, with each tensor once, and taken."""

    def __init__(self, group: Any) -> None:
        self.held: dict[int, torch.Tensor] = {}
        send, take = group.send, group.take

        def sent(rank: int, kind: Kind, step: int, index: int = 0, payload: Any = None) -> None:
            self._hold(kind, payload)
            send(rank, kind, step, index, payload)

        def taken(kind: Kind, *what: Any, **more: Any) -> Any:
            payload = take(kind, *what, **more)
            self._hold(kind, payload)
            return payload

        group.send, group.take = sent, taken

    def _hold(self, kind: Kind, payload: Any) -> None:
        if kind in (Kind.SUMS, Kind.SUM):
            for part in payload if isinstance(payload, list) else [payload]:
                self.held |= {id(tensor): tensor for tensor in (part if isinstance(part, tuple) else (part,))}

    @property
    def elements(self) -> int:
        return sum(tensor.numel() for tensor in self.held.values())


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_an_exchange_has_as_much_in_messages_as_is_counted_beforehand(
    make_group: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    """Or less, where a table has rows that the batch lacks."""

    def shares() -> list[float]:
        group = make_group(CUTS[0], replicas=replicas, shards=4)
        weighed = [Weighed(each) for each in group.groups]
        group.all(lambda rank: group.pipelines[rank].gradients(0))
        return [each.elements / group.states[0].size for each in weighed]

    packs = shares()
    monkeypatch.setattr("lmj_trainer.strategy.pipeline.exchange.packed", lambda span: None)
    whole = shares()
    # Elements are shared in whole spans.
    assert whole == pytest.approx(under_way(4, replicas), rel=0.1)
    # Most of the elements are the table's, and a batch has few of its rows.
    assert all(less < 0.8 * all_ for less, all_ in zip(packs, whole, strict=True))


@pytest.mark.parametrize("replicas", [1, 2])
def test_each_parameter_is_final_once(make_group: Callable[..., Ranks], replicas: int) -> None:
    """Part by part, some of them while others are computed; and what is final does not change."""
    group = make_group(CUTS[0], replicas=replicas, shards=4)
    told = [torch.zeros(group.states[0].size) for _ in range(replicas)]
    finals = [torch.zeros(group.states[0].size) for _ in range(replicas)]
    early = [0] * replicas

    def work(rank: int) -> None:
        state, computing = group.states[rank], True

        def final(part: torch.Tensor) -> None:
            span = slice(int(part.storage_offset()), int(part.storage_offset()) + part.numel())
            told[rank][span] += 1
            finals[rank][span] = state.gradient[span]
            early[rank] += computing

        def finish(exchange: Exchange) -> None:
            nonlocal computing
            computing = False
            finish_it(exchange)

        monkey[rank] = finish
        group.pipelines[rank].gradients(0, final)

    monkey: dict[int, Callable[[Exchange], None]] = {}
    finish_it = Exchange.finish
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Exchange, "finish", lambda exchange: monkey[exchange._me](exchange))
        group.all(work)
    for rank in range(replicas):
        state = group.states[rank]
        known = torch.zeros(state.size)
        for slot in state.slots:
            known[slot.weight.storage_offset() : slot.weight.storage_offset() + slot.weight.numel()] = 1
        assert torch.equal(told[rank], known)
        assert torch.equal(finals[rank] * known, state.gradient * known)
    # Of several, it depends on when the others' sums arrive.
    assert early[0] > 0 or replicas > 1


def test_gradients_are_exchanged_while_others_are_computed(
    make_group: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_group(CUTS[0], replicas=2, shards=4)
    seen: list[list[Any]] = [[], []]
    final = Exchange.final

    def spy(exchange: Exchange, weight: torch.Tensor) -> None:
        seen[exchange._me].append(Exchange.final)
        final(exchange, weight)

    monkeypatch.setattr(Exchange, "final", spy)
    for rank, each in enumerate(group.groups):
        send = each.send

        def sends(other: int, kind: Kind, *more: Any, rank: int = rank, send: Callable[..., None] = send) -> None:
            seen[rank].append(kind)
            send(other, kind, *more)

        monkeypatch.setattr(each, "send", sends)
    group.all(lambda rank: group.pipelines[rank].gradients(0))
    finals = [[number for number, event in enumerate(events) if event is spy] for events in seen]
    assert [len(each) for each in finals] == [len(pipeline._weights) for pipeline in group.pipelines]
    assert all({Kind.SUMS, Kind.SUM} < set(events) for events in seen)
    # Most of this model is its embeddings, whose gradients come last.
    assert any(events.index(Kind.SUMS) < each[-1] for events, each in zip(seen, finals, strict=True))


def of(job: LiveMigrationJob, folder: Path, replicas: int, stages: int = 1) -> LiveMigrationJob:
    """``job`` without dropout, whose generator is the process's, in four shards."""
    document = elsewhere(job, folder).model_dump(by_alias=True, mode="json")
    document["spec"]["pipeline"] |= {"stages": stages, "microBatches": 4}
    document["spec"]["dataParallel"] = {"shards": 4, "replicas": replicas}
    document["spec"]["model"]["scratch"]["dropout"] = 0.0
    return LiveMigrationJob.model_validate(document)


class Workers:
    """All ranks of a job in threads, whose trainers live on from view to view."""

    def __init__(self, job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> None:
        self.job, self.network = job, dict[str, MemoryTransport]()
        self.lines = [Line() for _ in range(job.spec.world_size)]
        self.trainers = [self.made(rank) for rank in range(len(self.lines))]
        draw_in_turn(monkeypatch, len(self.lines))

    def made(self, rank: int) -> Trainer:
        """The worker of ``rank``."""
        return make(self.job, self.lines[rank], rank, self.network)

    def view(self, number: int, resume: Resume) -> View:
        """One of all ranks, each where its worker of now is."""
        whole, now = view(number, resume, len(self.trainers)), [trainer._transport.address for trainer in self.trainers]
        members = [member.model_copy(update={"address": address}) for member, address in zip(whole.members, now, strict=True)]
        return whole.model_copy(update={"members": members})

    def run(self, resume: Resume, *, ranks: Sequence[int] | None = None, number: int = 1, until: int | None = None) -> list[Line]:
        """A view of ``ranks`` (None: all) to the end, or until every rank has committed step ``until``, and it breaks.

        A checkpoint that is under way becomes durable first: with its view it would be given up, and the best weights may be its.
        """
        members = list(range(len(self.lines))) if ranks is None else list(ranks)
        trainers = [self.trainers[rank] for rank in members]

        def stop(trainer: Trainer, kind: EventKind, details: dict[str, Any]) -> None:
            if kind is EventKind.COMMITTED and details["progress"].step == until:
                assert trainer._checkpointer.settled(60)
                raise ViewBrokenError(f"step {until} is committed")

        for rank, trainer in zip(members, trainers, strict=True):
            self.lines[rank].on = partial(stop, trainer)
        whole = self.view(number, resume)
        now = whole.model_copy(update={"members": [whole.members[rank] for rank in members]})
        with ThreadPoolExecutor(len(members)) as pool:
            futures = [pool.submit(trainer.run, now) for trainer in trainers]
            done, others = wait(futures, 60, FIRST_EXCEPTION if until is None else ALL_COMPLETED)
            for trainer in trainers if others else []:
                trainer._transport.inbox.supersede(number + 1, "another rank has failed")
        if until is not None:
            assert all(isinstance(future.exception(), ViewBrokenError) for future in futures)
            return self.lines
        for future in done:
            future.result()
        assert [future.result() for future in futures] == [WorkerPhase.COMPLETED] * len(members)
        return self.lines


Together = Callable[[LiveMigrationJob], Workers]
Train = Callable[..., list[Line]]


def learn_the_same(one: LiveMigrationJob, four: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> Line:
    """Both jobs run to their ends, and learn: the same losses, weights and evaluations, to the bit. What the only rank of ``one`` said."""
    (alone,) = Workers(one, monkeypatch).run(start())
    lines = Workers(four, monkeypatch).run(start())
    assert losses(four) == losses(one)
    assert losses(one)[-1] < losses(one)[0]
    assert all(torch.equal(tensor, weights(four)[name]) for name, tensor in weights(one).items())
    told, theirs = ([details["evaluation"] for _, details in line.of(EventKind.EVALUATED)] for line in (alone, lines[0]))
    assert told == theirs
    return alone


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Together:
    return lambda job: Workers(job, monkeypatch)


@pytest.fixture
def train(together: Together) -> Train:
    """All ranks in threads, to the end."""
    return lambda job, resume, number=1: together(job).run(resume, number=number)


@pytest.mark.integration
@pytest.mark.parametrize("stages", [1, 2])
def test_a_job_of_two_replicas_trains_evaluates_and_saves_as_one(
    job: LiveMigrationJob, tmp_path: Path, train: Train, stages: int
) -> None:
    one, two = of(job, tmp_path / "one", 1), of(job, tmp_path / "two", 2, stages)
    (alone,), lines = train(one, start()), train(two, start())
    assert losses(two) == losses(one)
    assert lines[0].evaluated() == alone.evaluated()
    assert all(torch.equal(tensor, weights(two)[name]) for name, tensor in weights(one).items())
    for folder in (tmp_path / "two" / "checkpoints").iterdir():
        assert len(list(folder.glob("rank-*.safetensors"))) == stages, "each part is written once"


@pytest.mark.integration
def test_equal_micro_batches_are_another_sum_for_any_number_of_stages_and_replicas(
    job: LiveMigrationJob, tmp_path: Path, train: Train
) -> None:
    def whole(name: str, replicas: int, stages: int, in_halves: bool = False) -> list[float]:
        made = of(job, tmp_path / name, replicas, stages)
        pipeline = made.spec.pipeline.model_copy(update={"first_in_halves": in_halves})
        made = made.model_copy(update={"spec": made.spec.model_copy(update={"pipeline": pipeline})})
        train(made, start())
        return losses(made)

    one = whole("one", 1, 1)
    assert whole("two", 2, 1) == one
    assert whole("stages", 2, 2) == one
    assert whole("halves", 1, 1, in_halves=True) != one


@pytest.mark.integration
def test_a_checkpoint_goes_on_in_another_number_of_replicas(job: LiveMigrationJob, tmp_path: Path, train: Train) -> None:
    whole, parted = of(job, tmp_path / "whole", 2), of(job, tmp_path / "parted", 3)
    train(whole, start())
    lines = train(parted, start())
    step = lines[0].of(EventKind.CHECKPOINTED)[0][1]["checkpoint"].step
    assert step < len(losses(whole))
    again = of(job, tmp_path / "parted", 4)
    train(again, at(step), 2)
    assert losses(again) == losses(whole)
    assert all(torch.equal(tensor, weights(again)[name]) for name, tensor in weights(whole).items())


@pytest.mark.integration
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_lost_replica_costs_no_step_and_no_bit(
    job: LiveMigrationJob, tmp_path: Path, together: Together, stages: int, lost: int
) -> None:
    """The others go on from what they have in memory, whoever led before; evaluations and the best weights are those of one."""
    one, four = of(job, tmp_path / "one", 1), of(job, tmp_path / "four", 4, stages)
    (alone,) = together(one).run(start())
    group = together(four)
    group.run(start(), until=6)
    rest = [rank for rank in range(4 * stages) if rank // stages != lost]
    lines = group.run(Resume(step=6, told_by=rest[0]), ranks=rest, number=2)
    assert losses(four) == losses(one)
    recorded = [json.loads(line) for line in (tmp_path / "four" / "metrics.jsonl").read_text().splitlines()]
    assert [line["replicas"] for line in recorded] == [4 if line["step"] <= 6 else 3 for line in recorded]
    assert alone.evaluated() == {k: v for line in lines for k, v in line.evaluated().items()}
    assert all(torch.equal(tensor, weights(four)[name]) for name, tensor in weights(one).items())


class Slow:
    """A stage whose forward passes take so many seconds longer, those of evaluations too."""

    def __init__(self, stage: Any, seconds: float) -> None:
        self.stage, self.seconds = stage, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    def __call__(self, *arguments: Any) -> Any:
        time.sleep(self.seconds)
        return self.stage(*arguments)


def slowed(group: Workers, rank: int, seconds: float) -> None:
    strategy: Any = group.trainers[rank].strategy
    strategy._stage = Slow(strategy._stage, seconds)


def times(line: Line) -> list[tuple[float | None, float | None]]:
    """What was told of each step: work and waiting."""
    return [(details["compute_seconds"], details["waiting_seconds"]) for _, details in line.of(EventKind.COMMITTED)]


@pytest.mark.integration
@pytest.mark.parametrize("slow", [0, 3])
def test_the_slow_rank_computes_and_the_others_wait(job: LiveMigrationJob, tmp_path: Path, together: Together, slow: int) -> None:
    """Two replicas of two stages: the rank of the same stage has the same work, and the others of the slow one's replica wait too."""
    group = together(of(job, tmp_path / "out", 2, 2))
    slowed(group, slow, 0.1)
    lines = group.run(start(), until=6)
    for line in lines:
        told = times(line)
        assert [seconds is None for pair in told for seconds in pair] == [True] * 4 + [False] * 8, "from the third step on"
    compute, waiting = zip(*(times(line)[-1] for line in lines), strict=True)
    # Two shards, whose only micro-batch goes in halves.
    assert compute[slow] >= 4 * 0.1
    others = [rank for rank in range(4) if rank != slow]
    assert all(compute[rank] < compute[slow] / 2 for rank in others)
    assert all(waiting[rank] > waiting[slow] for rank in others)
    recorded = (tmp_path / "out" / "metrics.jsonl").read_text()
    assert '"gradNorm"' in recorded
    assert not any(name in recorded for name in ("compute", "waiting")), "what is recorded is the same in every run"


@pytest.mark.integration
def test_what_a_step_took_in_another_view_is_not_told(job: LiveMigrationJob, tmp_path: Path, together: Together) -> None:
    """The rank may have more shards in this one."""
    group = together(of(job, tmp_path / "out", 2))
    group.run(start(), until=6)
    assert times(group.lines[0])[-1][0] is not None
    first = len(times(group.lines[0]))
    group.run(Resume(step=6, told_by=0), ranks=[0], number=2)
    told = times(group.lines[0])[first:]
    assert [seconds is None for seconds, _ in told[:3]] == [True, True, False]


class Clock(threading.local):
    """Of each thread: only what is said to take time takes any."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.integration
def test_more_shards_are_more_work_and_the_exchange_is_none(
    job: LiveMigrationJob, tmp_path: Path, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three replicas of four shards: the last has two, each as slow as the others'."""
    clock, offer = Clock(), Exchange._offer

    def late(*arguments: Any) -> None:
        clock.sleep(10)
        offer(*arguments)

    monkeypatch.setattr(Exchange, "_offer", late)
    for module in (pipeline_module, exchange_module, group_module, sys.modules[__name__]):
        monkeypatch.setattr(module, "time", clock)
    group = together(of(job, tmp_path / "out", 3))
    for rank in range(3):
        slowed(group, rank, 1)
    # The only micro-batch of a shard goes in halves.
    assert [times(line)[-1][0] for line in group.run(start(), until=4)] == [2, 2, 4]
