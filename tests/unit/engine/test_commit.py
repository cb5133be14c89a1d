"""Steps and evaluations of stages in threads, over the transport in memory. Dropout is off: its generator is the process's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmj_api.protocol import Holding
from lmj_api.spec import JobSpec
from lmj_api.topology import Topology
from lmj_trainer.data.split import Split
from lmj_trainer.dataset.stored import PreparedDataset
from lmj_trainer.errors import UserError
from lmj_trainer.group.commit import Commit, Decision, Wish, abandon, agree
from lmj_trainer.group.group import Group
from lmj_trainer.state.loss_scale import SKIP, LossScale
from lmj_trainer.state.optimizer import AdamW
from lmj_trainer.strategy.batches import Batches
from lmj_trainer.strategy.pipeline import pipeline as pipeline_module
from lmj_trainer.strategy.pipeline.pipeline import Pipeline
from lmj_trainer.task.sequence_classification.objective import TextObjective
from lmj_trainer.transport import inbox as inbox_module
from lmj_trainer.transport.envelope import Envelope, Kind
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.memory import MemoryTransport

pytestmark = pytest.mark.integration

PATIENCE = 30.0
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def split(rows: int, seed: int) -> Split:
    random = np.random.default_rng(seed)
    lengths = random.integers(3, 20, rows)
    tokens = random.integers(5, 3000, int(lengths.sum()), dtype=np.int32)
    return Split(tokens, None, np.concatenate([[0], np.cumsum(lengths)]), random.integers(0, 2, rows), 32)


PREPARED = PreparedDataset("digest", ("neg", "pos"), 0, 3001, Path("none"), {"train": split(64, 1), "validation": split(150, 2)})


def spec(stages: int, **data_parallel: int) -> JobSpec:
    return JobSpec.model_validate(
        {
            "pipeline": {"stages": stages, "microBatches": 4},
            "dataParallel": data_parallel,
            "model": {"scratch": {}},
            "dataset": {"source": "none", "text": ["t"], "label": "l", "maxLength": 32},
            "training": {"batchSize": 16, "learningRate": 1e-3, "epochs": 2},
            "output": {"path": "none"},
        }
    )


class Ranks:
    """Stages of replicas, one a thread."""

    def __init__(
        self,
        make_state: Callable[..., Any],
        config: Any,
        cuts: Sequence[range],
        patience: float = PATIENCE,
        *,
        replicas: int = 1,
        shards: int = 1,
    ) -> None:
        network: dict[str, MemoryTransport] = {}
        topology = Topology(len(cuts), replicas)
        self.transports = [MemoryTransport(network, f"rank-{rank}") for rank in topology.ranks]
        self.states, self.groups, self.pipelines = [], [], []
        batches = Batches(PREPARED, spec(len(cuts), shards=shards, replicas=replicas), torch.device("cpu"))
        for rank in topology.ranks:
            stage, state = make_state(config, cuts[topology.stage(rank)])
            self.states.append(state)
            self.groups.append(Group(self.transports[rank], rank, topology, patience))
            self.pipelines.append(Pipeline(stage, state, self.groups[rank], batches, TextObjective(PREPARED.labels)))
            self.transports[rank].join(1, rank, {r: f"rank-{r}" for r in topology.ranks if r != rank})

    def all(self, work: Callable[[int], Any]) -> list[Any]:
        """``work(rank)`` in all threads at once; the first exception by rank is raised."""
        with ThreadPoolExecutor(len(self.pipelines)) as pool:
            return [future.result() for future in [pool.submit(work, rank) for rank in range(len(self.pipelines))]]

    def evaluate(self, tick: Callable[[int, int], None] = lambda done, count: None) -> list[Any]:
        """What each rank says of the validation split."""
        return self.all(lambda rank: self.pipelines[rank].evaluate("validation", 0, tick))

    @property
    def whole(self) -> Callable[..., Any]:
        return self.pipelines[0].whole

    def tensors(self, what: str) -> dict[str, torch.Tensor]:
        return {slot.name: getattr(slot, what).clone() for state in self.states for slot in state.slots}


CUTS = [[range(3)], [range(2), range(2, 3)], [range(1), range(1, 2), range(2, 3)]]


@pytest.fixture
def make_group(make_state: Callable[..., Any], make_config: Callable[..., Any]) -> Callable[..., Ranks]:
    return lambda cuts, **more: Ranks(make_state, make_config(**NO_DROPOUT), cuts, **more)


def nothing(wish: Wish) -> Decision:
    assert wish == Wish()
    return Decision()


def step(
    group: Ranks, number: int, limit: float | None, decide: Callable[[Wish], Decision] = nothing, leaves: int | None = None
) -> list[Any]:
    def work(rank: int) -> Any:
        pipeline, state = group.pipelines[rank], group.states[rank]
        losses = pipeline.gradients(number)
        commit = agree(group.groups[rank], state, losses, group.whole, limit, 1e-3, decide, wish=Wish(stop=rank == leaves))
        AdamW(state, spec(1).training).apply()
        return commit

    return group.all(work)


def test_any_cut_takes_the_same_steps(make_group) -> None:
    results = []
    for cuts in CUTS:
        group = make_group(cuts)
        commits = [step(group, number, 0.1) for number in range(3)]
        for of_step in commits:
            assert len({commit.coefficient for commit in of_step}) == 1
            assert len({commit.loss for commit in of_step}) == 1
        assert [state.step for state in group.states] == [3] * len(cuts)
        results.append(([(c[0].loss, c[0].grad_norm, c[0].coefficient) for c in commits], group.tensors("weight")))
    for facts, tensors in results[1:]:
        assert facts == results[0][0]
        assert all(torch.equal(tensors[name], tensor) for name, tensor in results[0][1].items())
    assert all(coefficient < 1 for _, _, coefficient in results[0][0])


@pytest.mark.parametrize(("cuts", "halves"), [(CUTS[1], 2), (CUTS[2], 4)])
def test_only_the_last_backwards_are_in_two_halves(make_group, monkeypatch: pytest.MonkeyPatch, cuts, halves: int) -> None:
    """A backward in halves takes longer, and nobody waits for earlier ones."""
    group = make_group(cuts)
    done: dict[int, list[str]] = {id(pipeline._weights): [] for pipeline in group.pipelines}

    def recorded(what: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*values: Any) -> Any:
            done[next(id(value) for value in values if id(value) in done)].append(what)
            return work(*values)

        return run

    for name, what in (("backward", "whole"), ("backward_input", "first half")):
        monkeypatch.setattr(pipeline_module, name, recorded(what, getattr(pipeline_module, name)))
    step(group, 0, None)
    first, *others = done.values()
    assert first == ["whole"] * 5, "the first micro-batch is two"
    assert others == [["whole"] * (5 - halves) + ["first half"] * halves] * (len(cuts) - 1)


def test_the_coefficient_is_that_of_clip_grad_norm(make_group) -> None:
    group = make_group(CUTS[1])
    group.all(lambda rank: group.pipelines[rank].gradients(0))
    before = group.tensors("grad")
    order = [slot.name for state in make_group(CUTS[0]).states for slot in state.slots]
    parameters = [torch.nn.Parameter(torch.zeros_like(before[name])) for name in order]
    for name, parameter in zip(order, parameters, strict=True):
        parameter.grad = before[name].clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, 0.05)
    commits = group.all(
        lambda rank: agree(group.groups[rank], group.states[rank], [0.5] * rank, group.whole, 0.05, 1e-3, nothing)
    )
    assert commits[0].grad_norm == float(norm)
    assert commits[0].loss == 0.5
    for name, parameter in zip(order, parameters, strict=True):
        assert torch.equal(before[name] * commits[1].coefficient, parameter.grad), name


def test_a_rehearsal_changes_nothing_and_keeps_nothing(make_group) -> None:
    """What is prepared may be needed: of its gradients none is added to the block's, nor kept beside it."""
    group = make_group(CUTS[2])
    group.all(lambda rank: group.pipelines[rank].gradients(0))
    before = [state.block.clone() for state in group.states]
    for pipeline in group.pipelines:
        pipeline.rehearse()
    assert all(torch.equal(state.block, block) for state, block in zip(group.states, before, strict=True))
    grads = [[weight.grad for weight in pipeline._weights] for pipeline in group.pipelines]
    where = [[slot.grad.data_ptr() for slot in state.slots] for state in group.states]
    assert [[grad.data_ptr() for grad in each] for each in grads] == where


@pytest.mark.parametrize("leaves", [None, 0, 1, 2])
def test_rank_0_decides_for_all_when_all_are_prepared(make_group, leaves: int | None) -> None:
    group = make_group(CUTS[2])
    asked = []

    def decide(wish: Wish) -> Decision:
        asked.append(wish.stop)
        return Decision(checkpoint=True, stop=True)

    commits = step(group, 0, 1.0, decide, leaves)
    assert asked == [leaves is not None]
    assert all(commit.decision == Decision(checkpoint=True, stop=True) for commit in commits)


@pytest.mark.parametrize("commits", [True, False])
def test_who_is_prepared_does_not_leave_without_the_answer(make_group, monkeypatch: pytest.MonkeyPatch, commits: bool) -> None:
    """Rank 0 does not know that the view is being left, and what it commits is recorded."""
    monkeypatch.setattr(inbox_module, "PROMISE_SECONDS", 60)
    group = make_group(CUTS[1])
    group.all(lambda rank: group.pipelines[rank].gradients(0))
    abandoned: list[int] = []

    def work(rank: int) -> Any:
        if rank == 0:
            end = time.monotonic() + 30
            while not group.transports[0].inbox.poll(Kind.PREPARED, 0, 0, 1) and time.monotonic() < end:
                time.sleep(0.001)
            group.transports[1].inbox.supersede(2, "a newer view")
            if not commits:
                return abandon(group.groups[0], 0)
        try:
            told = partial(abandoned.append, rank)
            return agree(group.groups[rank], group.states[rank], [0.5] * rank, group.whole, 1.0, 1e-3, nothing, abandoned=told)
        except ViewBrokenError as error:
            return str(error)

    first, second = group.all(work)
    if commits:
        assert first.coefficient == second.coefficient
        assert [state.committed[0] for state in group.states] == [1, 1]
        assert not abandoned
    else:
        assert abandoned == [1]
        assert second == "a newer view"
        assert group.states[1].holding == Holding(step=0, prepared=True)


def test_a_commit_is_recorded_and_in_the_ledger_before_anybody_hears_of_it(make_group) -> None:
    """Whoever dies between two of these leaves a successor that knows of whatever anybody else knows."""
    group = make_group(CUTS[1])
    group.all(lambda rank: group.pipelines[rank].gradients(0))
    order: list[tuple[int, str, Any]] = []
    send = group.transports[0].send

    def sends(rank: int, envelope: Envelope) -> None:
        order.append((0, f"sends {envelope.kind}", group.states[0].committed))
        send(rank, envelope)

    group.transports[0].send = sends

    def work(rank: int) -> Any:
        state = group.states[rank]

        def decided(commit: Commit) -> None:
            order.append((rank, "decided", state.committed))

        return agree(group.groups[rank], state, [0.5] * rank, group.whole, 0.05, 1e-3, nothing, decided)

    commit, _ = group.all(work)
    assert [entry for entry in order if entry[0] == 0] == [
        (0, "decided", None),
        (0, f"sends {Kind.COMMIT}", (1, commit.coefficient, 1e-3)),
    ]
    assert order[2:] == [(1, "decided", None)]
    assert group.states[1].committed == (1, commit.coefficient, 1e-3)


def test_the_leader_s_own_replica_is_told_last(make_group) -> None:
    """If it dies in between, its replica is lost with what that one has heard."""
    group = make_group(CUTS[1], replicas=2, shards=2)
    group.all(lambda rank: group.pipelines[rank].gradients(0))
    told: list[int] = []
    send = group.transports[0].send

    def sends(rank: int, envelope: Envelope) -> None:
        told.append(rank)
        send(rank, envelope)

    group.transports[0].send = sends
    losses = [[0.5] if rank in (1, 3) else [] for rank in range(4)]
    group.all(lambda rank: agree(group.groups[rank], group.states[rank], losses[rank], group.whole, 1.0, 1e-3, nothing))
    assert told == [2, 3, 1]


@pytest.mark.parametrize("stages", [1, 2])
def test_nobody_is_prepared_in_a_view_that_broke_meanwhile(make_group, stages: int) -> None:
    """As by a follower that was told to leave."""
    group = make_group(CUTS[stages - 1])
    group.all(lambda rank: group.pipelines[rank].gradients(0))
    last = stages - 1

    def prepared() -> None:
        group.transports[last].inbox.fail(1, "its follower was told to leave")

    with pytest.raises(ViewBrokenError, match="its follower was told to leave"):
        agree(group.groups[last], group.states[last], [0.5], group.whole, 1.0, 1e-3, nothing, prepared=prepared)
    assert group.states[last].committed is None
    assert group.transports[0].inbox.waiting == 0, "it promised nothing"


@pytest.mark.parametrize("loss", [0.5, float("nan")])
def test_an_update_whose_gradients_overflowed_is_left_out(make_group, loss: float) -> None:
    group = make_group(CUTS[1])
    before = group.tensors("weight")
    for state in group.states:
        state.fill(4)
        state.loss_scale = LossScale(4)
        state.gradient.fill_(float("nan"))

    def work(rank: int) -> Commit:
        state = group.states[rank]
        commit = agree(group.groups[rank], state, [loss] if rank else [], group.whole, 1.0, 1e-3, nothing)
        AdamW(state, spec(2).training).apply()
        return commit

    told = None if loss != loss else loss
    assert group.all(work) == [Commit(SKIP, Decision(), told, None)] * 2
    after = group.tensors("weight")
    assert all(torch.equal(before[name], after[name]) for name in before)
    for state in group.states:
        assert state.step == 5
        assert not state.gradient.any()
        assert state.loss_scale == LossScale(5, exponent=15, skipped=1)


def test_a_scaled_loss_is_the_same_step(make_group) -> None:
    """A power of two changes no bit of norm and update."""
    plain, scaled = make_group(CUTS[1]), make_group(CUTS[1])
    for state in scaled.states:
        state.loss_scale = LossScale(0)
    (one, _), (two, _) = (step(group, 0, 1e-3) for group in (plain, scaled))
    assert two.coefficient == one.coefficient / 2**16
    assert (two.loss, two.grad_norm) == (one.loss, one.grad_norm)
    first, second = plain.tensors("weight"), scaled.tensors("weight")
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("scale", [None, LossScale(4, exponent=0)])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_loss_that_is_no_number_is_the_user_s(make_group, what: str, scale: LossScale | None) -> None:
    group = make_group(CUTS[1], patience=1.0)
    for state in group.states:
        state.loss_scale = scale
    losses = [float("nan")] if what == "loss" else [0.5]
    if what == "gradient":
        group.states[1].slots[0].grad.view(-1)[0] = float("inf")

    def work(rank: int) -> Any:
        try:
            group.states[rank].fill(4)
            return agree(group.groups[rank], group.states[rank], losses if rank else [], group.whole, 1.0, 1e-3, nothing)
        except (UserError, ViewBrokenError) as error:
            return error

    first, second = group.all(work)
    assert isinstance(first, UserError)
    assert "\n" not in str(first)
    assert str(first).startswith("step 5: the loss is ")
    assert "lower training.learningRate" in str(first)
    assert isinstance(second, ViewBrokenError), "nobody applies the step"


def test_a_peer_that_does_not_answer_breaks_the_view(make_group) -> None:
    group = make_group(CUTS[1], patience=0.1)
    with pytest.raises(ViewBrokenError, match=r"no prepared 0 of step 0 from rank 1 within 0\.1 s"):
        agree(group.groups[0], group.states[0], [], group.whole, 1.0, 1e-3, nothing)


def test_a_step_that_broke_off_can_be_done_again(make_group) -> None:
    """Rank 1 does not take part at first; rank 0 gives up, forgets its gradients and does the step in the next view."""
    expected = make_group(CUTS[1])
    step(expected, 0, 1.0)
    group = make_group(CUTS[1], patience=PATIENCE)
    threading.Timer(0.3, group.transports[0].inbox.fail, [1, "rank 1 is lost"]).start()
    with pytest.raises(ViewBrokenError, match="rank 1 is lost"):
        group.pipelines[0].gradients(0)
    for rank in (0, 1):
        group.transports[rank].join(2, rank, {1 - rank: f"rank-{1 - rank}"})
        group.states[rank].forget_gradients()
    step(group, 0, 1.0)
    assert all(torch.equal(t, expected.tensors("weight")[name]) for name, t in group.tensors("weight").items())


def test_any_cut_counts_the_same_in_an_evaluation(make_group) -> None:
    results = []
    for cuts in CUTS:
        group = make_group(cuts)
        ticks: list[tuple[int, int]] = []
        work = group.all(lambda rank, g=group, t=ticks: g.pipelines[rank].evaluate("validation", 0, lambda *a: t.append(a)))
        assert work[1:] == [None] * (len(cuts) - 1)
        assert ticks == [(i, 5) for i in range(1, 6)]
        assert sum(map(sum, work[0].confusion)) == 150
        results.append((work[0].confusion, sorted(work[0].losses)))
        # A second pass in the same view and step (validation, then test) is not confused with the first.
        again = group.all(lambda rank, g=group: g.pipelines[rank].evaluate("validation", 0, lambda *a: None))
        assert vars(again[0]) == vars(work[0])
        assert all(transport.inbox.waiting == 0 for transport in group.transports), "every message was taken"
        assert group.pipelines[0]._stage.model.training
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("stages", [0, 1])
def test_replicas_share_an_evaluation_and_count_what_one_does(make_group, replicas: int, stages: int) -> None:
    (alone,) = make_group(CUTS[0], shards=4).evaluate()[:1]
    ticks: list[tuple[int, int]] = []
    work = make_group(CUTS[stages], replicas=replicas, shards=4).evaluate(lambda *told: ticks.append(told))
    assert work[1:] == [None] * (len(work) - 1)
    assert (work[0].confusion, sorted(work[0].losses)) == (alone.confusion, sorted(alone.losses))
    mine = -(-5 // replicas)
    assert ticks == [(i, mine) for i in range(1, mine + 1)], "the leader's replica does its part alone"
