"""Learning rate, clipping and AdamW: the same bits as torch's and transformers' own."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import get_scheduler

from lmj_api.spec import Model, Training
from lmj_trainer.model.stage import Stage
from lmj_trainer.state import stage_state
from lmj_trainer.state.learning_rate import learning_rate, warmup_steps
from lmj_trainer.state.optimizer import AdamW, clip_coefficient, gradient_norms, optimizer_of, total_norm
from lmj_trainer.state.stage_state import CHUNK, StageState
from lmj_trainer.state.weights import freeze, initialise
from lmj_trainer.task.sequence_classification.heads import HEADS

SCHEDULES: dict[str, tuple[str, list[tuple[dict[str, Any], dict[str, Any]]]]] = {
    "Linear": ("linear", [({}, {})]),
    "Cosine": ("cosine", [({}, {})]),
    "Constant": ("constant_with_warmup", [({}, {})]),
    "CosineWithRestarts": ("cosine_with_restarts", [({}, {}), ({"cycles": 3}, {"num_cycles": 3})]),
    "Polynomial": (
        "polynomial",
        [
            ({}, {}),
            ({"power": 2.0}, {"power": 2.0}),
            ({"power": 0.7, "endLearningRate": 3e-5}, {"power": 0.7, "lr_end": 3e-5}),
            ({"endLearningRate": 0.0}, {"lr_end": 0.0}),
        ],
    ),
    "InverseSqrt": ("inverse_sqrt", [({}, {})]),
}
"""Names, those of TrainingArguments, and options with theirs."""


@pytest.mark.parametrize(
    ("name", "theirs", "options", "keywords"),
    [(name, theirs, *both) for name, (theirs, ways) in SCHEDULES.items() for both in ways],
)
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (7, 7), (100, 0), (997, 50), (300, 299)])
def test_learning_rate_is_that_of_transformers(
    name: str, theirs: str, options: dict[str, Any], keywords: dict[str, Any], steps: int, warmup: int
) -> None:
    if theirs == "polynomial" and warmup == steps:
        steps += 1  # there it divides by zero, for a step that is not trained
    values = {"learningRate": 3.3e-4, "schedule": name, "warmupSteps": warmup, "scheduleOptions": options}
    training = Training.model_validate(values)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=training.learning_rate)
    schedule = get_scheduler(theirs, optimizer, warmup, steps, scheduler_specific_kwargs=keywords)
    for step in range(steps):
        assert learning_rate(training, step, steps) == optimizer.param_groups[0]["lr"]
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scheduleOptions": {"cycles": 2}}, "scheduleOptions.cycles is for schedule CosineWithRestarts: leave it out"),
        ({"schedule": "Cosine", "scheduleOptions": {"power": 2}}, "scheduleOptions.power is for schedule Polynomial"),
        (
            {"schedule": "Polynomial", "scheduleOptions": {"endLearningRate": 1e-3}, "learningRate": 1e-3},
            "scheduleOptions.endLearningRate 0.001 is not less than learningRate 0.001",
        ),
        ({"schedule": "Polynomial", "learningRate": 1e-8}, "scheduleOptions.endLearningRate 1e-07 is not less than"),
        ({"momentum": 0.9}, "momentum is for optimizer SGD: AdamW has adamBeta1"),
    ],
)
def test_options_go_with_what_they_are_of(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Training.model_validate(values)


def test_warmup_as_a_part_of_the_run_is_rounded_up() -> None:
    assert warmup_steps(Training(warmup_ratio=0.1), 101) == 11
    assert warmup_steps(Training(warmup_steps=5), 101) == 5


def adapters(config: Any) -> StageState:
    """Of a stage that trains so little that all of it changes at once."""
    model = Model.model_validate({"scratch": {}, "lora": {}})
    stage = Stage(config, HEADS, range(1, 2), seed=3, lora=model.lora, source=model.source)
    freeze(stage, model, torch.device("cpu"))
    state = StageState(stage, torch.device("cpu"))
    initialise(stage, state, model)
    assert len(state.groups) == 1
    return state


@pytest.mark.parametrize("limit", [1.0, None])
@pytest.mark.parametrize(("whole", "threads"), [(True, 1), (True, 3), (False, 1)])
def test_adamw_is_that_of_torch_to_the_bit(make_config, make_state, limit: float | None, whole: bool, threads: int) -> None:
    state = make_state(make_config(), range(3), threads=threads)[1] if whole else adapters(make_config())
    assert max(group.span.stop - group.span.start for group in state.groups) <= threads * CHUNK
    assert not whole or any(group.span.stop - group.span.start > (threads - 1) * CHUNK for group in state.groups)
    assert not whole or any(slot.weight.numel() > CHUNK and slot.weight.numel() % CHUNK for slot in state.slots)
    compare_with_adamw(state, limit)


@pytest.mark.parametrize("limit", [1.0, None])
def test_adamw_at_once_is_too(make_config, make_state, monkeypatch: pytest.MonkeyPatch, limit: float | None) -> None:
    """As on a GPU: few calls, and nothing is copied aside."""
    monkeypatch.setattr(stage_state, "_chunk", lambda device, threads: 0)
    _, state = make_state(make_config(), range(3))
    assert [group.decay for group in state.groups] == [True, True, False]
    assert len(state.undo) == 0
    compare_with_adamw(state, limit)


def compare_with_adamw(state: StageState, limit: float | None) -> None:
    """Take steps with both."""
    training = Training(weight_decay=0.02, adam_beta1=0.88, adam_epsilon=1e-7)
    theirs = [torch.nn.Parameter(slot.weight.clone()) for slot in state.slots]
    groups = [
        {"params": params, "weight_decay": weight}
        for decay, weight in ((True, 0.02), (False, 0.0))
        if (params := [p for p, slot in zip(theirs, state.slots, strict=True) if slot.decay is decay])
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.88, 0.999), eps=1e-7, fused=True)
    ours = AdamW(state, training)
    generator = torch.Generator().manual_seed(5)
    clipped = []
    for step in range(6):
        scale = 1e-4 if step % 2 else 1e-1
        rate = 1e-3 / (step + 1)
        for p, slot in zip(theirs, state.slots, strict=True):
            p.grad = torch.randn(p.shape, generator=generator) * scale
            slot.grad.add_(p.grad)
        coefficient = clip_coefficient(total_norm(gradient_norms(state)), limit)
        clipped.append(coefficient != 1.0)
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(theirs, limit)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        state.prepare()
        state.commit(coefficient, rate)
        ours.apply()
        assert state.step == step + 1
        for p, slot in zip(theirs, state.slots, strict=True):
            assert torch.equal(p, slot.weight), slot.name
            assert torch.equal(optimizer.state[p]["exp_avg"], slot.exp_avg)
            assert torch.equal(optimizer.state[p]["exp_avg_sq"], slot.exp_avg_sq)
            assert not slot.grad.any()
    assert clipped == ([True, False] * 3 if limit else [False] * 6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("limit", [1.0, None])
@pytest.mark.parametrize("whole", [True, False])
def test_sgd_is_that_of_torch_to_the_bit(make_config, make_state, momentum: float, limit: float | None, whole: bool) -> None:
    state = make_state(make_config(), range(3))[1] if whole else adapters(make_config())
    theirs = [torch.nn.Parameter(slot.weight.clone()) for slot in state.slots]
    groups = [
        {"params": params, "weight_decay": weight}
        for decay, weight in ((True, 0.02), (False, 0.0))
        if (params := [p for p, slot in zip(theirs, state.slots, strict=True) if slot.decay is decay])
    ]
    optimizer = torch.optim.SGD(groups, momentum=momentum, fused=True)
    ours = optimizer_of(state, Training.model_validate({"optimizer": "SGD", "momentum": momentum, "weightDecay": 0.02}))
    generator = torch.Generator().manual_seed(5)
    for step in range(4):
        for p, slot in zip(theirs, state.slots, strict=True):
            p.grad = torch.randn(p.shape, generator=generator) * (1e-4 if step % 2 else 1e-1)
            slot.grad.add_(p.grad)
        coefficient = clip_coefficient(total_norm(gradient_norms(state)), limit)
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(theirs, limit)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / (step + 1)
        optimizer.step()
        state.prepare()
        state.commit(coefficient, 1e-2 / (step + 1))
        ours.apply()
        for p, slot in zip(theirs, state.slots, strict=True):
            assert torch.equal(p, slot.weight), slot.name
            if momentum:
                assert torch.equal(optimizer.state[p]["momentum_buffer"], slot.exp_avg)
            assert not slot.exp_avg_sq.any()
            assert not slot.grad.any()


def test_the_norm_of_the_whole_gradient_is_the_same_for_every_cut(make_config, make_state) -> None:
    config = make_config()
    _, whole = make_state(config, range(3))
    parts = [make_state(config, cut)[1] for cut in (range(1), range(1, 3))]
    grads = {slot.name: torch.randn(slot.grad.shape, generator=torch.Generator().manual_seed(1)) for slot in whole.slots}
    for state in (whole, *parts):
        for slot in state.slots:
            slot.grad.copy_(grads[slot.name])
    joined = torch.cat([gradient_norms(state) for state in parts])
    assert torch.equal(joined, gradient_norms(whole))
    parameters = [torch.nn.Parameter(slot.weight.clone()) for slot in whole.slots]
    for p, slot in zip(parameters, whole.slots, strict=True):
        p.grad = slot.grad.clone()
    assert torch.equal(total_norm(joined), torch.nn.utils.get_total_norm([p.grad for p in parameters]))


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "electra", "gpt2", "llama"])
def test_biases_and_layer_norms_are_not_decayed(make_config, make_state, family: str) -> None:
    _, state = make_state(make_config(family), range(3), model=None)
    decayed = {slot.name for slot in state.slots if slot.decay}
    plain = {slot.name for slot in state.slots} - decayed
    is_norm = re.compile("norm|[.]ln_").search
    assert not any(n.endswith("bias") or is_norm(n.lower()) for n in decayed)
    assert all(n.endswith("bias") or is_norm(n.lower()) for n in plain)
    assert all(slot.weight.dim() == 2 for slot in state.slots if slot.decay)


def test_clip_coefficient() -> None:
    assert clip_coefficient(torch.tensor(7.0), None) == 1.0
    assert clip_coefficient(torch.tensor(0.5), 1.0) == 1.0
    assert clip_coefficient(torch.tensor(4.0), 1.0) == pytest.approx(0.25, rel=1e-6)
