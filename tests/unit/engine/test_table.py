"""The table of tokens: the same bits as torch's embedding, in the gradient that lies there, by any threads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from lmj_trainer.model.stage import Stage
from lmj_trainer.model.table import Table, with_table
from lmj_trainer.task.sequence_classification.heads import HEADS

ROWS, WIDTH = 40, 24


def pair(padding: int | None) -> tuple[nn.Embedding, Table]:
    """Torch's and ours, with the same values and gradients of zeros."""
    made = nn.Embedding(ROWS, WIDTH, padding_idx=padding), Table(ROWS, WIDTH, padding_idx=padding)
    made[1].load_state_dict(made[0].state_dict())
    for each in made:
        each.weight.grad = torch.zeros(ROWS, WIDTH)
    return made


def bits(table: nn.Embedding) -> Tensor:
    assert table.weight.grad is not None
    return table.weight.grad.view(torch.int32)


@pytest.mark.parametrize("threads", [1, 2])
@given(
    st.lists(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=60), min_size=1, max_size=4),
    st.sampled_from([None, 0, 7, ROWS - 1]),
    st.integers(0, 99),
)
def test_gradients_have_the_bits_of_torchs(threads: int, batches: list[list[int]], padding: int | None, seed: int) -> None:
    theirs, mine = pair(padding)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        source = torch.Generator().manual_seed(seed)
        for ids in batches:
            weights = torch.randn(1, len(ids), WIDTH, generator=source)
            outputs = [table(torch.tensor([ids])) for table in (theirs, mine)]
            assert torch.equal(*outputs)
            for output in outputs:
                (output * weights).sum().backward()
    finally:
        torch.set_num_threads(before)
    assert torch.equal(bits(mine), bits(theirs))


def test_the_gradient_that_lies_there_is_added_to_and_told_of() -> None:
    _, mine = pair(0)
    block = torch.ones(ROWS * WIDTH)
    mine.weight.grad = block.view(ROWS, WIDTH)
    told: list[Tensor] = []
    mine.weight.register_post_accumulate_grad_hook(told.append)  # type: ignore[no-untyped-call]
    mine(torch.tensor([[3, 5, 3, 0]])).sum().backward()
    assert [id(weight) for weight in told] == [id(mine.weight)]
    assert not mine.weight.grad.is_sparse
    assert mine.weight.grad.data_ptr() == block.data_ptr()
    rows = block.view(ROWS, WIDTH)[:, 0].tolist()
    assert rows == [3 if row == 3 else 2 if row == 5 else 1 for row in range(ROWS)]


def test_the_gradient_handed_on_has_rows_of_the_batch_alone() -> None:
    _, mine = pair(None)
    (gradient,) = torch.autograd.grad(mine(torch.tensor([[9, 2, 9]])).sum(), [mine.weight])
    assert gradient.is_coalesced()
    assert gradient.indices().tolist() == [[2, 9]]


def test_nothing_is_kept_where_nothing_is_trained() -> None:
    _, mine = pair(0)
    with torch.no_grad():
        assert mine(torch.tensor([1])).grad_fn is None
    mine.weight.requires_grad_(False)
    assert mine(torch.tensor([1])).grad_fn is None


def model() -> BertForSequenceClassification:
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": ROWS}
    return BertForSequenceClassification(BertConfig(**shape))


def test_a_model_gets_it_with_the_same_parameter() -> None:
    changed = model()
    weight = changed.get_input_embeddings().weight
    with_table(changed)
    table = changed.get_input_embeddings()
    assert type(table) is Table
    assert table.weight is weight
    assert table.padding_idx == 0
    assert [name for name, _ in changed.named_parameters()] == [name for name, _ in model().named_parameters()]


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}])
def test_an_embedding_with_rules_of_its_own_stays(option: dict[str, object]) -> None:
    kept = model()
    own = nn.Embedding(ROWS, 16, **option)  # type: ignore[arg-type]
    kept.set_input_embeddings(own)
    with_table(kept)
    assert kept.get_input_embeddings() is own


@pytest.mark.parametrize(
    ("layers", "device", "there"), [(range(1), "cpu", True), (range(1, 2), "cpu", False), (range(1), "meta", False)]
)
def test_the_first_stage_has_it_on_the_cpu(layers: range, device: str, there: bool) -> None:
    stage = Stage(model().config, HEADS, layers, seed=0)
    stage.materialise(torch.device(device))
    assert any(isinstance(module, Table) for module in stage.model.modules()) is there
