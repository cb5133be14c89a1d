"""An output folder as a run leaves it, and more of it."""

import json
from pathlib import Path
from typing import Any

import yaml
from jobs import job_document
from planned import view_of_one

from lmj_api.layout import Layout
from lmj_api.protocol import Evaluation
from lmj_api.run import Run
from lmj_api.spec import LiveMigrationJob
from lmj_trainer.trackers.views import add_view

RUN = "0a1b2c3d-1111-2222-3333-444455556666"
OTHER = "99999999-1111-2222-3333-444455556666"
BEGUN = 1_700_000_000.0


class RunFolder:
    """The files that rank 0 writes."""

    def __init__(
        self, output: Path, trackers: list[dict[str, Any]], run: str = RUN, *, hub: Any = None, model: Any = None
    ) -> None:
        self.layout = Layout(output, output / "checkpoints")
        self.run = Run(id=run, begun=BEGUN)
        output.mkdir(parents=True, exist_ok=True)
        document = job_document(output)
        document["metadata"] |= {"uid": run, "creationTimestamp": "2026-11-24T00:00:00Z"}
        document["spec"]["output"]["trackers"] = trackers
        document["spec"]["output"]["hub"] = hub
        document["spec"]["model"] |= model or {}
        document["spec"]["template"] = {
            "spec": {"containers": [{"name": "trainer", "env": [{"name": "A", "value": "concealed"}]}]}
        }
        self.job = LiveMigrationJob.model_validate(yaml.safe_load(yaml.safe_dump(document)))
        self.layout.trained.write_text(self.job.to_json())

    def commit(self, first: int, last: int, attempt: int = 0) -> None:
        """Steps ``first`` to ``last``, in place of those that were there. Done again they have the same loss, at another time."""
        kept = [line for line in self._lines() if json.loads(line)["step"] < first]
        for step in range(first, last + 1):
            when = BEGUN + step + 1000 * attempt
            kept.append(json.dumps({"step": step, "epoch": step / 8, "loss": 1.0 / step, "learningRate": 0.001, "time": when}))
        self.layout.metrics.write_text("".join(f"{line}\n" for line in kept))

    def _lines(self) -> list[str]:
        return self.layout.metrics.read_text().splitlines() if self.layout.metrics.exists() else []

    def evaluate(self, *splits_and_steps: tuple[str, int]) -> None:
        """All evaluations that there are."""
        results = [Evaluation(split=s, step=k, samples=8, loss=1.0 / k, accuracy=0.5, f1=0.5) for s, k in splits_and_steps]
        self.layout.evaluation.write_text(json.dumps([r.model_dump(mode="json", by_alias=True) for r in results]))

    def view(self, number: int, step: int, reason: str, run: str | None = None) -> None:
        add_view(self.layout.views, run or self.run.id, view_of_one(number, step, reason), BEGUN)
