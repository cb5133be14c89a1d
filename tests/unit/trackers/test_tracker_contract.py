"""What each tracker promises, with its real library: MLflow against its real server, W&B and Trackio without one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow_server
import pytest
from cluster.errors import Unavailable
from tests.unit.trackers.run_folder import OTHER, RUN, RunFolder

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SHOWN = str(Path(__file__).with_name("shown.py"))
SECONDS = 180.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with mlflow_server.serving(tmp_path_factory.mktemp("mlflow")) as address:
            yield address
    except Unavailable as error:
        pytest.skip(str(error))


class Place:
    """One tracker of a run, and how it is read."""

    def __init__(self, tracker: dict[str, Any], folder: Path, run: str = RUN) -> None:
        self.kind, self.folder, self.tracker = tracker["kind"], folder, tracker
        self.run = RunFolder(folder, [tracker], run)

    def track(self) -> str:
        done = _python("-m", "lmj_trainer", "track", str(self.folder))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def shown(self, run: str = RUN) -> dict[str, Any]:
        place = self.tracker["uri"] if self.kind == "MLflow" else str(self.run.layout.trackers)
        done = _python(SHOWN, self.kind, place, run)
        assert done.returncode == 0, done.stdout + done.stderr
        value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return value


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "WANDB_MODE": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False, env=environment
    )


@pytest.fixture(params=["MLflow", "WandB", "Trackio"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    more = {"MLflow": {}, "WandB": {"offline": True}, "Trackio": {}}[request.param]
    if request.param == "MLflow":
        more = {"uri": request.getfixturevalue("server"), "name": "shown as this"}
    project = f"proof-{tmp_path.name}" if request.param == "MLflow" else "proof"
    return Place({"kind": request.param, "project": project, **more}, tmp_path / "out")


def losses(first: int, last: int) -> list[list[float]]:
    return [[step, 1.0 / step] for step in range(first, last + 1)]


def test_a_run_is_shown_goes_on_and_shows_no_step_twice(place: Place, tmp_path: Path) -> None:
    run = place.run
    run.commit(1, 30)
    run.evaluate(("validation", 20))
    run.view(1, 0, "all are ready")
    run.view(2, 12, "rank 0 has a new worker")
    where = place.track()
    assert where.strip()
    shown = place.shown()
    assert shown["metrics"]["train/loss"] == losses(1, 30)
    assert shown["metrics"]["validation/accuracy"] == [[20, 0.5]]
    assert shown["metrics"]["train/learningRate"] == [[step, 0.001] for step in range(1, 31)]
    assert shown["notes"] == ["step 12: rank 0 has a new worker"]
    assert shown["parameters"]["training.learningRate"] == "0.001"
    assert "concealed" not in json.dumps(shown["parameters"])

    # It goes back to step 25, and on; the best weights, of a step before the newest, are tested at the end.
    run.commit(26, 40, attempt=1)
    run.evaluate(("validation", 20), ("validation", 40), ("test", 20))
    run.view(3, 25, "rank 1 moved")
    place.track()
    place.track()
    shown = place.shown()
    assert shown["runs"] == 1
    assert shown["metrics"]["train/loss"] == losses(1, 40)
    assert shown["metrics"]["validation/loss"] == [[20, 1 / 20], [40, 1 / 40]]
    assert shown["metrics"]["test/loss"] == [[20, 1 / 20]]
    assert shown["notes"] == ["step 12: rank 0 has a new worker", "step 25: rank 1 moved"]
    if place.kind == "MLflow":
        assert shown["state"] == "FINISHED"

    # Another run of the job, in a folder of its own, is another one there.
    if place.kind == "MLflow":
        other = Place(place.tracker, tmp_path / "again", OTHER)
        other.run.commit(1, 2)
        other.track()
        assert place.shown(OTHER)["metrics"]["train/loss"] == losses(1, 2)
        assert place.shown()["metrics"]["train/loss"] == losses(1, 40)


def test_what_was_logged_is_not_again_where_the_cursor_is_lost(place: Place) -> None:
    if place.kind == "WandB":
        return  # without its server it cannot know; the server tells what it has when a run is resumed
    run = place.run
    run.commit(1, 10)
    run.evaluate(("validation", 10))
    place.track()
    for file in run.layout.trackers.glob("*.json"):
        file.unlink()
    run.commit(11, 12)
    place.track()
    assert place.shown()["metrics"]["train/loss"] == losses(1, 12)


def test_a_server_that_does_not_answer_is_told_in_a_line(tmp_path: Path) -> None:
    port = mlflow_server.free_port()
    place = Place({"kind": "MLflow", "project": "proof", "uri": f"http://127.0.0.1:{port}"}, tmp_path / "out")
    place.run.commit(1, 2)
    script = "import lmj_trainer.run_commands.track as m, sys; m.ALL_SECONDS = 1.0; sys.exit(m.main(sys.argv[1:]))"
    done = _python("-c", script, str(place.folder))
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"MLflow (http://127.0.0.1:{port}) did not take all" in line
    assert f"lmj track {place.folder} sends the rest" in line
