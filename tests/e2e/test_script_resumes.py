"""What the tests of ``strategy: Command`` build on: each script, killed under ``torchrun`` and started again by hand, ends with the bits of one
that was left alone. Then a difference elsewhere is not the script's.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from command_jobs import ALL, Run, assert_equal
from jobs import DEADLINE, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # they are of the scripts, under torchrun alone


@pytest.mark.parametrize("name", ALL)
def test_a_script_that_is_killed_and_started_again_ends_as_if_left_alone(tmp_path: Path, name: str) -> None:
    script = ALL[name]
    alone = Run(tmp_path / "alone", script)
    alone.whole()

    killed = Run(tmp_path / "killed", script)
    step = script.steps // 2 + 2
    killed.gate.close(step)
    with killed.started() as process:
        wait_until(lambda: killed.gate.reached(step, 0, 1), process)
        os.kill(killed.gate.pid(1), signal.SIGKILL)
        said, _ = process.communicate(timeout=DEADLINE)
        assert process.returncode == 1, said
    killed.gate.open()
    assert not (killed.output / "model.safetensors").exists()
    killed.whole()
    newest = step - step % 5
    assert killed.gate.steps() == [*range(1, step + 1), *range(newest + 1, script.steps + 1)], "it went on from its checkpoint"
    assert_equal(killed.weights(), alone.weights())


@pytest.mark.parametrize("name", ["trainer", "accelerate"])
def test_a_script_that_is_told_to_end_saves_and_goes_on_there(tmp_path: Path, name: str) -> None:
    script = ALL[name]
    alone = Run(tmp_path / "alone", script)
    alone.whole()

    told = Run(tmp_path / "told", script)
    step = script.steps // 2 + 2
    told.gate.close(step)
    with told.started() as process:
        wait_until(lambda: told.gate.reached(step, 0, 1), process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE)
    told.gate.open()
    told.whole()
    # The Trainer saves as a step begins, and does that step all the same: it is done again.
    again = [step + 1] if name == "trainer" else []
    assert told.gate.steps() == [*range(1, step + 1), *again, *range(step + 1, script.steps + 1)]
    assert_equal(told.weights(), alone.weights())
