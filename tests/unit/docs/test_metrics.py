"""The list of metrics has all that there are."""

import re
from pathlib import Path

import pytest

from lmj_api.protocol import AgentState, CheckpointInfo, Progress, WorkerState
from lmj_api.topology import Topology
from lmj_operator.controller.metrics import Metrics
from lmj_trainer.agent.metrics import render

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text()
PROGRESS = Progress(step=1, steps=2, epoch=0.5, loss=0.5, learning_rate=0.1, grad_norm=1.0, samples_per_second=1.0)
STATE = AgentState(
    pod="p", rank=0, started=1.0, worker=WorkerState(progress=PROGRESS), checkpoints=[CheckpointInfo(name="c", step=1)]
)


def families(text: bytes) -> set[str]:
    """Names of what is told, without the time at which a counter was made."""
    return {name for name in re.findall(r"^# TYPE (\w+)", text.decode(), re.MULTILINE) if not name.endswith("_created")}


@pytest.mark.parametrize(
    ("title", "told"),
    [("The operator", Metrics(list).render()), ("The agents", render(STATE, Topology(1), 1, 1))],
    ids=["operator", "agent"],
)
def test_every_metric_is_in_the_list_and_no_other(title: str, told: bytes) -> None:
    section = GUIDE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    first_cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} == families(told)
