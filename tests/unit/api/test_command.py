"""A job of ``strategy: Command``: what it says, what is refused of it, and that it survives its way as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from crd_rules import defaulted, misfits
from served_version import SCHEMA

from lmj_api.identity import differences, state_fields
from lmj_api.layout import Layout
from lmj_api.load import SpecError, load_job
from lmj_api.results import trained_job
from lmj_api.schema import RULES
from lmj_api.spec import Checkpoint, JobSpec, LiveMigrationJob, Strategy, Training
from lmj_api.spec.dataset import NO_DATASET
from lmj_api.spec.model import NO_MODEL, Model
from lmj_api.view import MOST_RANKS


def document(**spec: Any) -> dict[str, Any]:
    """A smallest job of a script, with parts of its spec replaced; None: left out."""
    whole = {"strategy": "Command", "command": {"args": ["train.py"]}, "output": {"path": "out"}, **spec}
    parts = {name: part for name, part in whole.items() if part is not None}
    return {"apiVersion": "lmj.dev/v1alpha1", "kind": "LiveMigrationJob", "metadata": {"name": "script"}, "spec": parts}


def load(**spec: Any) -> LiveMigrationJob:
    return load_job(document(**spec), base=Path("/data"), outputs=Path("/output"), here=False)


def problem(**spec: Any) -> str:
    with pytest.raises(SpecError) as caught:
        load(**spec)
    return str(caught.value)


def test_a_script_has_no_model_no_data_and_one_stage() -> None:
    spec = load(dataParallel={"replicas": 3}).spec
    assert (spec.model, spec.dataset) == (NO_MODEL, NO_DATASET)
    assert (spec.training, spec.checkpoint) == (Training(), Checkpoint())
    assert (spec.topology.stages, spec.topology.replicas, spec.world_size) == (1, 3, 3)
    assert spec.data_parallel.min_replicas == 1


def test_a_command_is_stateless_and_a_pipeline_is_not() -> None:
    assert [strategy.stateless for strategy in (Strategy.COMMAND, Strategy.PIPELINE)] == [True, False]


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"strategy": None}, "spec: command is the script of strategy Command: add strategy: Command, or leave command out"),
        (
            {"strategy": "Pipeline"},
            "spec: command is the script of strategy Command: add strategy: Command, or leave command out",
        ),
        ({"strategy": "command"}, "spec.strategy: 'command' is not one of Pipeline, Command; did you mean Command?"),
        (
            {"command": None},
            "spec: command is missing: strategy Command runs the script in it, as in command: {args: [train.py]}",
        ),
        ({"command": None, "comand": {}}, "spec.comand: unknown field; did you mean command?"),
        ({"command": {"args": []}}, "spec.command.args: 0 items; at least 1 are needed"),
        (
            {"command": {"args": ["-m"]}},
            "spec.command: args: -m is followed by the name of a module, as in [-m, my_package.train]",
        ),
        ({"command": {"args": [3]}}, "spec.command.args[0]: 3 is a number; text is needed (put it in quotes)"),
        ({"model": {"scratch": {}}}, "spec: model: the script of strategy Command has its own: leave model out"),
        ({"dataset": {"source": "a.csv"}}, "spec: dataset: the script of strategy Command has its own: leave dataset out"),
        (
            {"training": {"threads": 2}},
            "spec: training.threads: the script takes its values from command.args, and threads from command.threads: leave training out",
        ),
        (
            {"checkpoint": {"keep": 2}},
            "spec: checkpoint.keep: the script saves its own checkpoints, in command.checkpoints: leave checkpoint out",
        ),
        (
            {"pipeline": {"stages": 3}},
            "spec: pipeline.stages: each rank is a pod that runs the script, and dataParallel.replicas their number: leave pipeline out",
        ),
        (
            {"pipeline": {"microBatches": 8}},
            "spec: pipeline.microBatches: each rank is a pod that runs the script, and dataParallel.replicas their number: leave"
            " pipeline out",
        ),
        (
            {"dataParallel": {"replicas": 2, "shards": 4}},
            "spec: dataParallel.shards 4: the script shares its work among the processes itself: leave it out",
        ),
        ({"dataParallel": {"shards": "4"}}, "spec.dataParallel.shards: '4' is text; a whole number is needed"),
        ({"dataParallel": 2}, "spec.dataParallel: a mapping is needed, not 2"),
        ({"dataParallel": {"replicas": 2000}}, "spec.dataParallel.replicas: 2000 is too large; at most 1024 is needed"),
        (
            {"dataParallel": {"replicas": 3, "maxReplicas": 2}},
            "spec.dataParallel: replicas 3 is more than maxReplicas 2: raise maxReplicas first",
        ),
        ({"dataParallel": {"replicas": 2, "minReplicas": 3}}, "spec.dataParallel: minReplicas 3 is more than replicas 2"),
        *(
            (
                {"output": {"path": "o", name: value}},
                f"spec: output.{name}: the script saves and reports its results itself: leave it out",
            )
            for name, value in (
                ("weights", "Best"),
                ("int8", True),
                ("tensorboard", True),
                ("trackers", [{"kind": "WandB", "project": "p"}]),
                ("hub", {"repository": "me/tiny"}),
            )
        ),
        ({"recovery": {"hotStandby": True}}, "spec: recovery.hotStandby: nobody can follow what a script computes: leave it out"),
        (
            {"recovery": {"memorySnapshot": {"everySteps": 5}}},
            "spec: recovery.memorySnapshot: the state of a script is its own, and so are snapshots of it: leave it out",
        ),
        (
            {"recovery": {"straggler": {}}},
            "spec: recovery.straggler: nobody knows how long each rank of a script computes: leave it out",
        ),
        (
            {"migration": {"bandwidthMbps": 10}},
            "spec: migration.bandwidthMbps: nothing is copied when a script moves: leave it out",
        ),
        (
            {"network": {"encryption": "Required"}},
            "spec: network.encryption: a script makes its connections itself, which no relay knows: leave it out",
        ),
    ],
)
def test_what_a_script_cannot_have_is_told_in_one_line(spec: dict[str, Any], line: str) -> None:
    assert problem(**spec) == line


@pytest.mark.parametrize("name", ["model", "dataset"])
def test_any_other_job_needs_a_model_and_a_dataset(name: str) -> None:
    spec = {
        "strategy": None,
        "command": None,
        "model": {"scratch": {}},
        "dataset": {"source": "r.csv", "text": ["t"], "label": "l"},
    }
    assert problem(**spec | {name: None}) == f"spec.{name}: missing (The {name}.)"


def test_no_other_job_has_a_model_without_an_origin() -> None:
    fields = NO_MODEL.model_dump(by_alias=True)
    with pytest.raises(ValueError, match="exactly one of source"):
        Model.model_validate(fields)
    with pytest.raises(ValueError, match="leave model out"):
        JobSpec.model_validate(document(model=fields)["spec"])


FULL: dict[str, Any] = {
    "command": {"args": ["-m", "pkg.train", "--epochs", "3"], "workingDir": "src", "processesPerNode": 4, "saveSeconds": 5.5},
    "dataParallel": {"replicas": 2, "maxReplicas": 6},
    "recovery": {"standby": 1},
    "template": {"spec": {"containers": []}},
}


@pytest.mark.parametrize("spec", [{}, FULL], ids=["smallest", "full"])
def test_a_job_is_the_same_after_its_way_as_json(spec: dict[str, Any]) -> None:
    job = load(**spec)
    assert LiveMigrationJob.model_validate_json(job.to_json(), strict=True) == job
    assert LiveMigrationJob.model_validate(job.model_dump(mode="json", by_alias=True)) == job
    assert LiveMigrationJob.model_validate(job.model_dump()) == job
    assert not {"model", "dataset"} & json.loads(job.to_json())["spec"].keys()
    said = job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert said.keys() - {"checkpoint"} == document(**spec)["spec"].keys(), "what was filled in is not written into files"
    assert "shards" not in said.get("dataParallel", {})


def test_a_server_fills_in_what_a_job_of_a_script_may_have() -> None:
    stored = defaulted(document(), SCHEMA)
    assert misfits(stored, SCHEMA) == []
    assert (stored["spec"]["pipeline"]["stages"], stored["spec"]["dataParallel"]["shards"]) == (2, 1)
    assert load_job(stored, base=Path("/data"), outputs=Path("/output"), here=False) == load()


def test_a_server_demands_a_model_and_a_dataset_by_rule_alone() -> None:
    assert SCHEMA["properties"]["spec"]["required"] == ["output"]
    rules = [rule for rule, _ in RULES[""]]
    for name in ("model", "dataset"):
        assert f"(self.strategy == 'Command') ? !has(self.{name}) : has(self.command) || has(self.{name})" in rules
        of_it = [rule for rule in rules if f"self.{name}." in rule]
        assert of_it
        assert all(rule.startswith("!has(self.model) || !has(self.dataset) || ") for rule in of_it)


def test_a_server_refuses_whatever_field_of_training_was_changed() -> None:
    (rule,) = [rule for rule, text in RULES[""] if text.startswith("training: with strategy Command")]
    for info in Training.model_fields.values():
        assert f"self.training.{info.alias}" in rule


@pytest.mark.parametrize(
    ("parts", "most"),
    [({}, 1), ({"replicas": 2}, 2), ({"replicas": 2, "maxReplicas": 5}, 5)],
)
def test_shards_are_the_replicas_that_the_job_may_have(parts: dict[str, int], most: int) -> None:
    data_parallel = load(dataParallel=parts).spec.data_parallel
    assert (data_parallel.shards, data_parallel.most) == (most, most)


def test_without_max_replicas_it_scales_to_any_number() -> None:
    spec = load(dataParallel={"replicas": 2}).spec.scaled(7)
    assert (spec.world_size, spec.data_parallel.shards, spec.data_parallel.most) == (7, 7, 7)
    assert spec.scaled(MOST_RANKS).world_size == MOST_RANKS
    assert spec.scaled(1).world_size == 1


def test_with_max_replicas_it_scales_to_these() -> None:
    spec = load(dataParallel={"replicas": 2, "maxReplicas": 4}).spec
    assert spec.scaled(4).world_size == 4
    with pytest.raises(ValueError, match="replicas 5 is more than maxReplicas 4"):
        spec.scaled(5)


def test_it_has_no_stages_to_scale() -> None:
    spec = load().spec
    assert spec.scaled(stages=1) == spec
    with pytest.raises(ValueError, match=r"pipeline\.stages 2: each rank runs the whole script: scale the replicas"):
        spec.scaled(stages=2)


def test_places_are_absolute_and_arguments_as_written() -> None:
    places = {"workingDir": "src", "checkpoints": "out/ckpt", "progressFile": "out/progress.jsonl"}
    job = load(command={"args": ["train.py", "--data", "rows.csv"], **places})
    assert job.spec.command is not None
    assert job.spec.command.args == ["train.py", "--data", "rows.csv"]
    assert (job.spec.command.working_dir, job.spec.command.checkpoints) == ("/data/src", "/output/out/ckpt")
    assert (job.spec.command.progress_file, job.spec.output.path) == ("/output/out/progress.jsonl", "/output/out")
    unset = load().spec.command
    assert unset is not None
    assert (unset.working_dir, unset.checkpoints, unset.progress_file) == ("/data", None, None)


@pytest.mark.parametrize("field", ["workingDir", "checkpoints", "progressFile"])
def test_places_that_no_pod_can_have_are_refused(field: str) -> None:
    assert problem(command={"args": ["train.py"], field: "s3://b/x"}).startswith(f"spec.command.{field}: 's3://b/x': s3://")
    assert problem(command={"args": ["train.py"], field: "~/x"}).startswith(f"spec.command.{field}: '~/x': a pod has no home")


def here(folder: Path, **command: Any) -> str | None:
    """What is wrong with a job in ``folder`` on this machine; None: nothing."""
    try:
        load_job(document(command=command), base=folder)
    except SpecError as error:
        return str(error)
    return None


def test_a_script_that_is_missing_here_is_told(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("")
    assert here(tmp_path, args=["src/train.py"]) is None
    assert here(tmp_path, args=["train.py"], workingDir="src") is None
    assert here(tmp_path, args=[str(tmp_path / "src" / "train.py")]) is None
    assert here(tmp_path, args=["-m", "pkg.train"]) is None
    assert here(tmp_path, args=["sh", "-c", "true"]) is None
    missing = f"spec.command.args: there is no file {tmp_path}/src/tran.py; did you mean train.py?"
    assert here(tmp_path, args=["tran.py"], workingDir="src") == missing
    assert here(tmp_path, args=["train.py"], workingDir="scr") == (
        f"spec.command.workingDir: there is no folder {tmp_path}/scr; did you mean src?"
    )
    assert here(tmp_path, args=["train"], workingDir="src") == (
        "spec.command.args: there is no program train on the PATH: for a Python file write train.py"
    )


def test_other_arguments_may_go_on_and_are_told_once_it_has_finished() -> None:
    short, long = load(command={"args": ["t.py", "--epochs", "1"]}).spec, load(command={"args": ["t.py", "--epochs", "2"]}).spec
    assert differences(short, long, finished=False) == ()
    (difference,) = differences(short, long, finished=True)
    assert (str(difference), difference.continuable) == ("command.args t.py, --epochs, 1 → t.py, --epochs, 2", True)
    assert differences(short, short.scaled(5), finished=True) == ()
    assert state_fields(short) == state_fields(long)


def test_a_script_does_not_go_on_in_the_folder_of_another_strategy() -> None:
    trained = load(
        strategy=None, command=None, model={"scratch": {}}, dataset={"source": "r.csv", "text": ["t"], "label": "l"}
    ).spec
    for old, new, text in (
        (load().spec, trained, "strategy Command → Pipeline"),
        (trained, load().spec, "strategy Pipeline → Command"),
    ):
        for finished in (False, True):
            (difference,) = differences(old, new, finished=finished)
            assert (str(difference), difference.continuable) == (text, False)


def test_a_folder_without_files_of_ours_is_still_the_scripts_that_ran_there(tmp_path: Path) -> None:
    job = load()
    layout = Layout(tmp_path, tmp_path / "checkpoints")
    assert trained_job(layout) is None
    layout.run.mkdir()
    (layout.run / "job.json").write_text(job.to_json())
    assert trained_job(layout) == job
