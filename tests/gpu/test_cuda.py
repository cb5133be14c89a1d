"""The same on a GPU: any number of stages, killed and resumed, by ``==``. Skipped where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from parity_jobs import make_data, make_job, make_model
from ranks import group, run
from test_parity import kill, newest, same

from lmj_api.view import Resume

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible")]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    return make_data(folder / "rows.csv"), make_model(folder / "bert", "bert")


@pytest.mark.parametrize("precision", ["Float32", "BFloat16"])
def test_stages_and_a_kill_change_nothing(inputs: tuple[Path, Path], tmp_path: Path, precision: str) -> None:
    training = {"device": "CUDA", "precision": precision}
    one, two, killed = (tmp_path / name for name in ("one", "two", "killed"))
    run(make_job(one, *inputs, 1, training=training), one / "logs")
    run(make_job(two, *inputs, 2, training=training), two / "logs")
    same(one, two)
    with group(make_job(killed, *inputs, 2, training=training), killed / "logs") as ranks:
        ranks.start()
        ranks.form(Resume(step=0))
        kill(ranks, 1, 16)
        ranks.start(1)
        ranks.form(newest(killed))
        ranks.finish()
    same(one, killed)
