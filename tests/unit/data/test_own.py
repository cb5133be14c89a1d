"""What is wrong with a class of the user's own, told before anything is started."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from own_jobs import TASK, own_job

from lmj_api.spec import LiveMigrationJob
from lmj_trainer.check import Summary, check
from lmj_trainer.errors import UserError

pytestmark = pytest.mark.integration

STAGES = {"pipeline": {"stages": 2, "microBatches": 2}}


def job(folder: Path, task: str = TASK, **changes: Any) -> LiveMigrationJob:
    return own_job(folder, task, **{**STAGES, **changes})


def test_a_good_class_in_numbers(tmp_path: Path) -> None:
    summary = check(job(tmp_path))
    assert summary.rows == {"train": 64, "validation": 16}
    assert (summary.labels, summary.layers, summary.steps) == ([], 5, 12)
    # 4 x 8 + 8, twice one weight and two biases, a frozen one and its bias, and the end.
    assert summary.parameters == 40 + 2 * (64 + 16) + 72 + 16 + 18
    assert not (tmp_path / "out").exists()


def line_of(task: str, text: str) -> int:
    return next(number for number, line in enumerate(task.splitlines(), 1) if text in line)


CASES: dict[str, tuple[tuple[str, str], str, str]] = {
    "syntax": (("def loss(self", "def loss(self,,"), "def loss", "SyntaxError: invalid syntax"),
    "import": (("from torch import nn", "from torch import nnn"), "import nnn", "ImportError: cannot import name 'nnn'"),
    "exit": (("class MyTask:", "raise SystemExit(3)\nclass MyTask:"), "raise SystemExit", "SystemExit: 3"),
    "no-class": (("class MyTask:", "class MyTasks:"), "", "has no class MyTask; did you mean MyTasks?"),
    "no-method": (("def collate(", "def colate("), "class MyTask", "has no method collate: it needs model, collate, loss"),
    "arguments": (("def loss(self, scores, labels)", "def loss(self, scores)"), "def loss", "MyTask.loss is called with 2 arg"),
    "constructor": (("class MyTask:", "class MyTask:\n    def __init__(self):\n        self.x = nothing\n"), "self.x", "MyTask(): NameError"),
    "model-fails": (("return [nn.Linear(4, 8)", "return [nn.Linear(four, 8)"), "return [nn", "MyTask.model: NameError: name 'four'"),
    "no-module": (("return [nn.Linear(4, 8)", "return [abs"), "def model", "unit 0 of MyTask.model is a builtin"),
    "double": (("return [nn.Linear(4, 8)", "return [nn.Linear(4, 8).double()"), "def model", "weight of unit 0 is torch.float64"),
    "collate-fails": (('row["label"]', 'row["lable"]'), "row[", "MyTask.collate: KeyError: 'lable'"),
    "no-pair": (('rows]), torch', 'rows]); torch'), "def collate", "MyTask.collate gives a Tensor: a pair is needed"),
    "forward-fails": (("self.mix(hidden) * self", "self.mix(hiden) * self"), "return self.mix", "unit 2 (Frozen): NameError: name 'hiden'"),
    "shape": (("nn.Linear(8, 2)", "nn.Linear(9, 2)"), "def model", "unit 4 (Sequential): RuntimeError: "),
    "tuple": (("return self.mix(hidden) * self.scale", "return self.mix(hidden), self.scale"), "def model", "unit 2 (Frozen) gives a tuple"),
    "detached": (("return self.mix(hidden) * self.scale", "return self.mix(hidden.data)"), "def model", "unit 2 gives does not depend on"),
    "statistics": (("nn.LayerNorm(8)", "nn.BatchNorm1d(8)"), "def model", "running_mean of unit 4"),
    "loss-number": (("return F.cross_entropy(scores, labels)", "return 1.0"), "def loss", "MyTask.loss gives a float: the mean over the rows"),
    "loss-rows": (("entropy(scores, labels)", "entropy(scores, labels, reduction='none')"), "def loss", "a tensor of torch."),
    "loss-alone": (("return F.cross_entropy(scores, labels)", "return torch.zeros(())"), "def loss", "does not depend on the model's weights"),
    "metrics": (("return {\"accuracy\":", "return 1 or {\"accuracy\":"), "def metrics", "MyTask.metrics gives a int: numbers by name"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_one_line_with_its_place(case: str, tmp_path: Path) -> None:
    change, place, message = CASES[case]
    task = TASK.replace(*change, 1)
    assert task != TASK
    with pytest.raises(UserError) as raised:
        check(job(tmp_path, task))
    told, file = str(raised.value), tmp_path / "my_task.py"
    assert told.startswith(f"{file}:{line_of(task, place)}: " if place else f"{file} ")
    assert message in told
    assert "\n" not in told


def test_weights_in_two_units_are_refused(tmp_path: Path) -> None:
    task = TASK.replace("return [nn.Linear(4, 8), Residual()", "one = Residual()\n        return [nn.Linear(4, 8), one").replace(
        "Frozen(), Residual()", "Frozen(), one"
    )
    with pytest.raises(
        UserError, match=r"first.weight of unit 3 is a weight of unit 1 too: only weights within one unit can be shared"
    ):
        check(job(tmp_path, task))


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ({"stages": 6}, "pipeline.stages 6 is more than the model's 5 units: use 5 stages at most"),
        ({"stages": 2, "layers": [2, 2]}, r"pipeline.layers \[2, 2\] places 4 units, the model has 5"),
    ],
)
def test_a_cut_that_cannot_be(tmp_path: Path, pipeline: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(job(tmp_path, pipeline=pipeline))


def test_one_module_is_one_stage(tmp_path: Path) -> None:
    task = TASK.replace("return [", "return nn.Sequential(*[").replace("8, 2))]", "8, 2))])")
    with pytest.raises(
        UserError, match=r"pipeline.stages 2: .*my_task.py:MyTask makes one module, which is one stage: set stages 1"
    ):
        check(job(tmp_path, task))
    assert check(job(tmp_path / "one", task, pipeline={"stages": 1})).layers == 1


def test_a_stage_without_weights(tmp_path: Path) -> None:
    task = TASK.replace("Frozen(), Residual()", "nn.ReLU(), Residual()")
    with pytest.raises(UserError, match=r"stage 2 \(unit 2\) has no weights to train: put unit 2 together with others"):
        check(job(tmp_path, task, pipeline={"stages": 5}))
    assert check(job(tmp_path / "three", task, pipeline={"stages": 3})).layers == 5


def test_rows_are_whole_whatever_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"name": f"n{i}", "size": i, "parts": [i, i + 1], "raw": bytes([i])} for i in range(4)]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text("name,size\nn0,0\nn1,1\n")
    (tmp_path / "odd.jsonl").write_text('{"a": 1}\n{"a": "x"}\n')
    from lmj_trainer.dataset.prepared import prepare

    def read(name: str) -> Any:
        spec = job(tmp_path / "job", dataset={"source": str(tmp_path / name), "splits": {}}).spec
        table = prepare(spec, tmp_path / "cache", print).splits["train"]
        return table.rows(range(len(table)))

    assert read("rows.parquet") == rows
    assert read("rows.csv") == [{"name": "n0", "size": "0"}, {"name": "n1", "size": "1"}]
    with pytest.raises(UserError, match=r"column 'a' of .*odd.jsonl holds values of different kinds"):
        read("odd.jsonl")


def test_the_real_command_imports_what_the_class_needs(tmp_path: Path) -> None:
    """And what it prints is none of the summary."""
    file = tmp_path / "job.json"
    file.write_text(job(tmp_path, TASK.replace("def model(self):", "def model(self):\n        print('hello')")).to_json())
    done = subprocess.run(
        [sys.executable, "-m", "lmj_trainer", "check", "--job", str(file), "-o", "json"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Summary.model_validate_json(done.stdout).layers == 5
    assert "hello" in done.stderr
