"""What rank 0 writes down while training."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from lmj_api.layout import Layout
from lmj_api.protocol import Progress
from lmj_trainer.metrics import evaluate_counts
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker.recorder import Recorder


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "out", tmp_path / "out" / "checkpoints")


def progress(step: int) -> Progress:
    return Progress(step=step, steps=10, epoch=step / 10, loss=1 / 3, learning_rate=1e-3, grad_norm=2.0, samples_per_second=5.0)


def lines(layout: Layout) -> list[dict]:
    return [json.loads(line) for line in layout.metrics.read_text().splitlines()]


def record(layout: Layout, resume: int, steps: range) -> None:
    recorder = Recorder(layout, resume, tensorboard=False)
    for step in steps:
        recorder.step(progress(step), 100.0 + step)
    recorder.close()


def evaluation(step: int, hits: int = 3, split: str = "validation"):
    return evaluate_counts([[hits, 1], [1, hits]], 1.0, ["a", "b"], split, step)


def test_one_line_a_step_with_the_loss_s_own_bits(layout: Layout) -> None:
    record(layout, 0, range(1, 4))
    assert [line["step"] for line in lines(layout)] == [1, 2, 3]
    assert lines(layout)[2] == {
        "step": 3,
        "epoch": 0.3,
        "loss": 1 / 3,
        "gradNorm": 2.0,
        "learningRate": 1e-3,
        "samplesPerSecond": 5.0,
        "time": 103.0,
    }


def test_a_line_is_there_as_soon_as_it_is_recorded(layout: Layout) -> None:
    recorder = Recorder(layout, 0, tensorboard=False)
    recorder.step(progress(1), 1.0)
    assert len(lines(layout)) == 1
    recorder.close()


def test_a_resumed_run_forgets_what_it_does_again(layout: Layout) -> None:
    record(layout, 0, range(1, 6))
    record(layout, 3, range(4, 8))
    assert [line["step"] for line in lines(layout)] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("torn", ['{"step": 5, "lo', "{", '{"step": 5, "epoch": 0.5}', "\x00\x00\x00"])
def test_a_torn_last_line(layout: Layout, torn: str) -> None:
    record(layout, 0, range(1, 5))
    with layout.metrics.open("a") as file:
        file.write(torn)
    record(layout, 4, range(5, 7))
    assert [line["step"] for line in lines(layout)] == [1, 2, 3, 4, 5, 6]


def test_of_two_recorders_the_one_that_came_last_records(layout: Layout) -> None:
    """A group that nobody can reach trains on in a view that is over."""
    old = Recorder(layout, 0, tensorboard=False)
    for step in range(1, 5):
        old.check()
        old.step(progress(step), 1.0)
    new = Recorder(layout, 2, tensorboard=False)
    with pytest.raises(ViewBrokenError, match=r"another rank 0 writes into .*: a newer view has begun"):
        old.check()
    with pytest.raises(ViewBrokenError):
        old.evaluation(evaluation(5))
    old.close()
    new.check()
    new.step(progress(3), 2.0)
    new.close()
    assert [(line["step"], line["time"]) for line in lines(layout)] == [(1, 1.0), (2, 1.0), (3, 2.0)]
    assert not layout.evaluation.exists()


def test_lines_that_came_in_between_cost_none_of_the_others(layout: Layout) -> None:
    """Written by one that looked just before the other came."""
    record(layout, 0, range(1, 4))
    with layout.metrics.open("a") as file:
        for step in (9, 4, 5, 4, 5, 6):
            file.write(json.dumps({"step": step}) + "\n")
    record(layout, 6, range(7, 9))
    assert [line["step"] for line in lines(layout)] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_folder_that_takes_no_new_file_has_no_fence(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    record(layout, 0, range(1, 3))
    monkeypatch.setattr("lmj_trainer.worker.fence.os.replace", refuse)
    recorder = Recorder(layout, 2, tensorboard=False)
    recorder.check()
    recorder.step(progress(3), 1.0)
    recorder.close()
    assert [line["step"] for line in lines(layout)] == [1, 2, 3]


def test_evaluations_are_replaced_and_forgotten(layout: Layout) -> None:
    recorder = Recorder(layout, 0, tensorboard=False)
    for result in (evaluation(2), evaluation(4), evaluation(4, hits=9), evaluation(4, split="test")):
        recorder.evaluation(result)
    recorder.close()
    kept = Recorder(layout, 4, tensorboard=False)
    assert kept.evaluations == [evaluation(2), evaluation(4, hits=9), evaluation(4, split="test")]
    kept.close()
    written = json.loads(layout.evaluation.read_text())
    assert [(e["split"], e["step"], e["confusion"]) for e in written][1] == ("validation", 4, [[9, 1], [1, 9]])
    early = Recorder(layout, 3, tensorboard=False)
    assert early.evaluations == [evaluation(2)]
    early.close()


def test_tensorboard_files(layout: Layout) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recorder = Recorder(layout, 0, tensorboard=True)
    for step in (1, 2):
        recorder.step(progress(step), 100.0 + step)
    recorder.evaluation(evaluation(2))
    recorder.close()
    events = EventAccumulator(str(layout.tensorboard)).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2]
    assert events.Scalars("validation/accuracy")[0].value == 0.75


def test_storage_that_is_full_stops_nothing_and_costs_no_line(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    recorder = Recorder(layout, 0, tensorboard=False, warn=told.append)
    recorder.step(progress(1), 1.0)
    real, left = os.write, [20]

    def write(descriptor: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken, left[0] = min(left[0], len(data)), 0
        return real(descriptor, data[:taken])

    monkeypatch.setattr("lmj_trainer.worker.recorder.os.write", write)
    recorder.step(progress(2), 2.0)
    recorder.evaluation(evaluation(2))
    recorder.step(progress(3), 3.0)
    assert len(told) == 1
    assert "No space left on device; training goes on, and they are written later" in told[0]
    assert not layout.evaluation.exists()
    monkeypatch.undo()
    recorder.step(progress(4), 4.0)
    recorder.close()
    assert [line["step"] for line in lines(layout)] == [1, 2, 3, 4]
    assert len(json.loads(layout.evaluation.read_text())) == 1
    assert len(told) == 1
