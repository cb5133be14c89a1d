"""A stage's state: one block that parameters, gradients and checkpoints are views of."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.on_disk import commit_manifest, file_digest, load_state, load_weights, make_folder, write_tensors

from lmj_api.manifest import Manifest
from lmj_api.names import part_file
from lmj_trainer.model.inputs import Inputs
from lmj_trainer.model.stage import Place
from lmj_trainer.state.stage_state import CHUNK


def inside(tensor: torch.Tensor, block: torch.Tensor) -> bool:
    start = tensor.data_ptr() - block.data_ptr()
    return start >= 0 and start + tensor.nbytes <= block.nbytes


def fill(state, seed: int) -> None:
    """Moments of a training that went on for a while."""
    generator = torch.Generator().manual_seed(seed)
    for slot in state.slots:
        slot.exp_avg.copy_(torch.randn(slot.exp_avg.shape, generator=generator))
        slot.exp_avg_sq.copy_(torch.rand(slot.exp_avg_sq.shape, generator=generator))


def inputs(rows: int = 2, width: int = 8) -> Inputs:
    ids = torch.arange(rows * width).reshape(rows, width) + 5
    return Inputs(ids, torch.ones_like(ids), None, torch.zeros(rows, dtype=torch.long))


def test_parameters_are_views_of_the_block(make_config, make_state) -> None:
    stage, state = make_state(make_config(), range(3))
    named = stage.parameters_by_name()
    assert [name for name, _ in named] == [slot.name for slot in state.slots]
    assert [name for name, _ in named] == [name for name, _ in stage.model.named_parameters()]
    for (_, parameter), slot in zip(named, state.slots, strict=True):
        assert parameter.data_ptr() == slot.weight.data_ptr()
        assert parameter.grad.data_ptr() == slot.grad.data_ptr()
        assert all(inside(t, state.block) for t in (slot.weight, slot.exp_avg, slot.exp_avg_sq, slot.grad))
        assert inside(slot.exp_avg_sq, state.saved)
        assert not inside(slot.grad, state.saved)
    state.block.fill_(2.0)
    assert all((parameter == 2.0).all() for _, parameter in named)


def test_no_two_tensors_share_memory(make_config, make_state) -> None:
    _, state = make_state(make_config(), range(3))
    spans = sorted((t.data_ptr(), t.nbytes) for s in state.slots for t in (s.weight, s.exp_avg, s.exp_avg_sq, s.grad))
    assert all(a + size <= b for (a, size), (b, _) in pairwise(spans))


def test_gradients_add_up_in_the_block(make_config, make_state) -> None:
    stage, state = make_state(make_config(), range(3))
    before = [(p.grad.data_ptr(), p.data_ptr()) for _, p in stage.parameters_by_name()]
    once = []
    for micro_batch in (0, 0):
        logits = stage(inputs(), None, Place(0, micro_batch))
        logits.sum().backward()
        once.append([slot.grad.clone() for slot in state.slots])
    assert [(p.grad.data_ptr(), p.data_ptr()) for _, p in stage.parameters_by_name()] == before
    assert any(g.any() for g in once[0])
    assert all(torch.allclose(2 * a, b) for a, b in zip(*once, strict=True))
    state.forget_gradients()
    assert not any(slot.grad.any() for slot in state.slots)
    assert any(slot.weight.any() for slot in state.slots)


def test_the_gradient_may_change_between_forward_and_backward(make_config, make_state) -> None:
    """Weights and gradients lie in one storage: autograd must not take the one for the other."""
    stage, state = make_state(make_config(), range(3))
    first, second = (stage(inputs(), None, Place(0, i)).sum() for i in range(2))
    first.backward()
    second.backward()
    assert any(slot.grad.any() for slot in state.slots)


def test_saved_holds_weights_and_moments_by_name(make_config, make_state) -> None:
    _, state = make_state(make_config(), range(3))
    fill(state, 1)
    copy = state.saved.clone()
    now = {name: tensor.clone() for name, tensor in state.tensors()}
    names = [slot.name for slot in state.slots]
    assert list(now) == [prefix + name for prefix in ("", "exp_avg/", "exp_avg_sq/") for name in names]
    state.block.zero_()
    of_copy = dict(state.tensors(copy))
    assert of_copy.keys() == now.keys()
    assert all(torch.equal(of_copy[name], now[name]) for name in now)
    state.saved.copy_(copy)
    assert all(torch.equal(tensor, now[name]) for name, tensor in state.tensors())


def test_a_file_is_safetensors_and_its_digest_that_of_its_bytes(make_config, make_state, tmp_path: Path) -> None:
    _, state = make_state(make_config(), range(1, 3))
    fill(state, 2)
    path = tmp_path / part_file(1)
    entry = write_tensors(path, state.tensors(state.saved.clone()))
    assert (entry.name, entry.size, entry.xxh128) == (path.name, path.stat().st_size, file_digest(path))
    read = load_file(path)
    assert read.keys() == dict(state.tensors()).keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in state.tensors())


def checkpoint(root: Path, states, step: int) -> Path:
    folder = make_folder(root, step, 1)
    files = [write_tensors(folder / part_file(rank), state.tensors()) for rank, state in enumerate(states)]
    commit_manifest(folder, Manifest(job="j", view=1, step=step, epoch=0.5, state_digest="d", seconds=1.0, files=files))
    return folder


@pytest.mark.parametrize("cuts", [[range(3)], [range(2), range(2, 3)], [range(1), range(1, 2), range(2, 3)]])
def test_loads_into_any_number_of_stages(make_config, make_state, tmp_path: Path, cuts: list[range]) -> None:
    config = make_config()
    states = [make_state(config, cut)[1] for cut in (range(1), range(1, 3))]
    for seed, state in enumerate(states):
        fill(state, seed)
    folder = checkpoint(tmp_path, states, 17)
    expected = {name: tensor for state in states for name, tensor in state.tensors()}
    seen = set()
    for cut in cuts:
        _, state = make_state(config, cut, seed=99)
        state.slots[0].grad.fill_(3.0)
        assert load_state(folder, state).step == 17
        assert state.step == 17
        assert not state.slots[0].grad.any()
        for name, tensor in state.tensors():
            assert torch.equal(tensor, expected[name]), name
            seen.add(name)
    assert seen == expected.keys()


def test_weights_alone_leave_a_state_of_no_step(make_config, make_state, tmp_path: Path) -> None:
    _, state = make_state(make_config(), range(3))
    folder = checkpoint(tmp_path, [state], 3)
    _, other = make_state(make_config(), range(3), seed=4)
    fill(other, 4)
    moments = other.slots[0].exp_avg.clone()
    load_weights(folder, other)
    assert other.step == -1
    assert torch.equal(other.slots[0].weight, state.slots[0].weight)
    assert torch.equal(other.slots[0].exp_avg, moments)


def test_a_checkpoint_of_another_model_names_what_it_lacks(make_config, make_state, tmp_path: Path) -> None:
    _, small = make_state(make_config(), range(3))
    folder = checkpoint(tmp_path, [small], 3)
    _, large = make_state(make_config(num_hidden_layers=4), range(4))
    lacking = len(dict(large.tensors()).keys() - dict(small.tensors()).keys())
    with pytest.raises(KeyError, match=rf"holds no .*bert\.encoder\.layer\.3.* \(and {lacking - 1} others"):
        load_state(folder, large)
    assert large.step == -1, "half loaded is no step"


def test_a_middle_stage_holds_nothing_of_the_others(make_config, make_state) -> None:
    stage, state = make_state(make_config(), range(1, 2))
    own = {name for name, _ in stage.parameters_by_name()}
    assert own
    assert all(name.startswith("bert.encoder.layer.1.") for name in own)
    there = {name: p for name, p in stage.model.named_parameters() if not p.is_meta}
    assert there.keys() == own
    assert sum(p.numel() for p in there.values()) <= state.size < sum(p.numel() for p in there.values()) + 16 * len(there)
    assert state.block.untyped_storage().nbytes() == 16 * (state.size + CHUNK)
    assert all(buffer.is_meta for _, buffer in stage.model.named_buffers())
    assert not stage.first
    assert not stage.last


def test_what_is_lent_is_the_block_in_a_storage_of_its_own(make_state, make_config) -> None:
    """RPC sends a part of a larger storage as a copy."""
    state = make_state(make_config(), range(1, 3))[1]
    span = slice(96, 1120)
    for own, lent in zip(state.arrays(span, 1, 4), state.lent(span, 1, 4), strict=True):
        assert lent.untyped_storage().nbytes() == lent.nbytes
        own.copy_(torch.randn(len(own)))
        assert torch.equal(lent, own)
