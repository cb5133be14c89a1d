"""How a rank gets to a checkpoint whose store refuses what its pod has of a Secret yet."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from lmj_api.protocol import EventKind
from lmj_api.spec import LiveMigrationJob
from lmj_api.view import Resume
from lmj_trainer.errors import OutageError
from lmj_trainer.hub import patiently
from lmj_trainer.store.port import RenewableError
from lmj_trainer.worker import restoring as module
from lmj_trainer.worker.restoring import Restoring

REFUSED = RenewableError("s3://b/step-7/manifest.json: ExpiredToken: renew the Secret keys")
MANIFEST = SimpleNamespace(step=7, best_step=None, best_score=None, waited=0, seconds=2.5, loss_scale=None)


class Rig:
    """A rank without a state, whose store answers with ``answers``, one after the other."""

    def __init__(self, job: LiveMigrationJob, answers: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers, self.said = answers, list[str]()
        self.loaded: list[str] = []
        monkeypatch.setattr(module, "read_manifest", self.read)
        monkeypatch.setattr(module, "load_state", lambda folder, state: self.loaded.append(folder.name))
        self.state = SimpleNamespace(step=-1)
        control = SimpleNamespace(emit=self.emit)
        pace = SimpleNamespace(at=lambda step, activity: activity)
        source, none = SimpleNamespace(restart=lambda: None), None
        parts: Any = (job.spec, 1, none, self.state, source, none, none, none, control, pace)
        self.restoring = Restoring(*parts)

    def read(self, folder: Any) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def emit(self, kind: EventKind, message: str = "", *, progress: str) -> None:
        assert kind is EventKind.PREPARING
        self.said.append(progress)

    def restore(self) -> None:
        self.restoring._from_checkpoint(Resume(step=7, checkpoint="step-000000007-v1"), "step-000000007-v1")


def test_a_pod_that_sees_a_renewed_secret_late_is_waited_for(job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(module, "patiently", partial(patiently, clock=lambda: sum(waited), sleep=waited.append))
    rig = Rig(job, [REFUSED, MANIFEST], monkeypatch)
    rig.restore()
    assert rig.loaded == ["step-000000007-v1"]
    assert rig.state.seconds == 2.5
    (said,) = rig.said
    assert said.startswith("restore: s3://b/step-7/manifest.json: ExpiredToken: renew the Secret keys; tries again in ")
    assert waited == [1.0]


def test_it_is_not_waited_for_ever_and_for_nothing_else(job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RENEWAL_SECONDS", 0.0)
    with pytest.raises(OutageError, match=r"renew the Secret keys$"):
        Rig(job, [REFUSED], monkeypatch).restore()
    rig = Rig(job, [OSError("no such disk")], monkeypatch)
    with pytest.raises(OSError, match="no such disk"):
        rig.restore()
    assert not rig.said
