"""How good a saved model of a user's own class is, on rows of any file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

from lmj_api.spec import Model
from lmj_trainer.data.source import DataSource
from lmj_trainer.data.table import Table
from lmj_trainer.errors import UserError
from lmj_trainer.own.collate import collated
from lmj_trainer.own.objective import OwnObjective
from lmj_trainer.own.source import load_own
from lmj_trainer.own.stage import OwnStage
from lmj_trainer.own.units import build, names_of
from lmj_trainer.wording import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from lmj_api.protocol import Evaluation
    from lmj_trainer.data.ticker import Ticker


def evaluate_own(folder: Path, python: str, data: str, split: str, batch_size: int, ticker: Ticker) -> Evaluation:
    """The evaluation of the model in ``folder``, of the class that ``python`` names there, on ``split`` of ``data``. UserError."""
    own = load_own(Model(python=str(folder.absolute() / python)))
    table = Table.of(DataSource(data).read(split, [], None, ticker.say))
    units = build(own, 0)
    try:
        (names_of(units) if len(units) > 1 else units[0]).load_state_dict(load_file(folder / "model.safetensors"))
    except (OSError, RuntimeError) as error:
        raise UserError(f"model {folder} cannot be loaded: {one_line(error)}") from error
    stage = OwnStage(own, units, range(len(units)), seed=0)
    stage.set_training(False)
    objective = OwnObjective(own)
    counts = objective.counts()
    for number, start in enumerate(range(0, len(table), batch_size)):
        ticker.tick(f"evaluating: row {start} of {len(table)}")
        inputs = collated(own, table.rows(range(start, min(start + batch_size, len(table)))), start, torch.device("cpu"))
        with torch.no_grad():
            counts.add(number, stage(inputs, None, None), inputs.labels)
    if not counts.samples:
        raise UserError(f"{data} has nothing that counts, by {own.name}.samples")
    return objective.evaluation(counts, split, step=0)
