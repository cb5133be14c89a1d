"""The CRD: structural, equal to the models in defaults and bounds, and fresh on disk."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from crd_rules import defaulted, misfits, nodes, not_structural
from pydantic import BaseModel, Field
from served_version import SCHEMA, VERSION

from lmj_api.load import SpecError, load_job
from lmj_api.protocol import Evaluation, Progress
from lmj_api.schema import COLUMNS, RULES, crd, structural
from lmj_api.status import Condition, Incident, IncidentKind, JobStatus, RankStatus
from lmj_api.view import Member, Resume, View

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
SMALLEST: dict[str, Any] = {
    "apiVersion": "lmj.dev/v1alpha1",
    "kind": "LiveMigrationJob",
    "metadata": {"name": "quick"},
    "spec": {
        "model": {"scratch": {}},
        "dataset": {"source": "r.csv", "text": ["review"], "label": "label"},
        "output": {"path": "/o"},
    },
}


def at(path: str) -> dict[str, Any]:
    node: dict[str, Any] = SCHEMA
    for name in path.split("."):
        node = node["items"] if name == "[]" else node["properties"][name]
    return node


def test_the_schema_is_structural() -> None:
    assert not_structural(SCHEMA) == []


def test_every_field_is_described_and_no_description_is_python() -> None:
    below = [(path, node) for path, node in nodes(SCHEMA) if re.match(r"\.(spec|status)\b", path) and not path.endswith("[]")]
    assert [path for path, node in below if not node.get("description")] == []
    assert [path for path, node in below if re.search(r":(class|func|data):|`[^`]*\.__", node["description"])] == []


def test_defaults_fit_the_schema() -> None:
    for path, node in nodes(SCHEMA):
        if "default" in node:
            assert misfits(defaulted(node["default"], node), node, path) == []


def test_a_server_fills_in_the_same_defaults_as_the_models() -> None:
    ours = load_job(SMALLEST, base=Path("/")).spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    theirs = defaulted(SMALLEST, SCHEMA)["spec"]
    theirs["dataset"]["source"] = ours["dataset"]["source"]
    assert theirs == ours


def test_null_for_a_number_with_a_default_turns_it_off() -> None:
    assert at("spec.checkpoint.everySteps") == {
        "type": "integer",
        "description": "A checkpoint after every so many steps. Null: not by steps.",
        "minimum": 1,
        "default": 100,
        "nullable": True,
    }


def test_exclusive_bounds_are_booleans() -> None:
    rate = at("spec.training.learningRate")
    assert (rate["minimum"], rate["exclusiveMinimum"]) == (0, True)


def test_a_pod_template_is_kept_as_it_is() -> None:
    template = at("spec.template")
    assert template["x-kubernetes-preserve-unknown-fields"] is True
    assert "properties" not in template


def test_the_status_is_a_subresource_without_defaults_and_its_conditions_merge_by_type() -> None:
    assert VERSION["subresources"]["status"] == {}
    assert [path for path, node in nodes(at("status")) if "default" in node] == []
    conditions = at("status.conditions")
    assert (conditions["x-kubernetes-list-type"], conditions["x-kubernetes-list-map-keys"]) == ("map", ["type"])


def test_replicas_are_what_scales() -> None:
    scale = VERSION["subresources"]["scale"]
    for name in ("specReplicasPath", "statusReplicasPath", "labelSelectorPath"):
        node = at(scale[name].removeprefix("."))
        assert node["type"] == ("string" if name.startswith("label") else "integer")


def test_a_full_status_fits() -> None:
    status = JobStatus(
        conditions=[
            Condition(type="Ready", status="True", reason="Trains", message="", last_transition_time="2026-01-01T00:00:00Z")
        ],
        view=View(
            number=1, members=[Member(rank=0, pod="q-r0-1", incarnation=1, address="a")], resume=Resume(step=0), reason="start"
        ),
        serials={"0": 1},
        progress=Progress(step=3, steps=4, epoch=0.75, loss=0.5),
        evaluations=[
            Evaluation(split="test", step=4, samples=2, loss=1, accuracy=1, f1=1, labels=["a", "b"], confusion=[[1, 0], [0, 1]])
        ],
        ranks=[RankStatus(rank=0, state="Running")],
        incidents=[
            Incident(time="2026-11-21T07:41:35Z", kind=IncidentKind.HANG, rank=0, pod="q-r0-1", message="m", view=1, step=2)
        ],
    )
    assert misfits(json.loads(status.to_json()), at("status")) == []


def test_columns_show_fields_of_their_type() -> None:
    for name, kind, path, priority, about in COLUMNS:
        assert about
        assert priority in (0, 1)
        if path.startswith(".metadata"):
            continue
        shown = at(path.removeprefix("."))["type"]
        # A server cuts a number down to an integer column; any other difference leaves the column empty.
        assert shown == kind or (shown, kind) == ("number", "integer"), name


def test_replicas_are_shown_without_being_asked_for() -> None:
    assert [(kind, path, priority) for name, kind, path, priority, _ in COLUMNS if name == "Replicas"] == [
        ("string", ".status.replicaSummary", 0)
    ]


def test_rules_speak_of_fields_that_are_there() -> None:
    for path, rules in RULES.items():
        for rule, _ in rules:
            for field in re.findall(r"self\.([A-Za-z0-9.]+)", rule):
                at(".".join(filter(None, ["spec", path, field])))
        schema = at(f"spec.{path}" if path else "spec")
        assert [(entry["rule"], entry["message"]) for entry in schema["x-kubernetes-validations"]] == rules


def test_no_rule_of_a_part_with_an_empty_default_reads_a_default() -> None:
    """A server checks the default ``{}`` against the part's rules before it fills the part in."""
    for path, rules in RULES.items():
        part = at(f"spec.{path}") if path else {}
        if part.get("default") == {}:
            for rule, _ in rules:
                unguarded = rule.split("||", 1)[0]
                assert "has(" in unguarded or rule == "self == oldSelf", f"{path}: {rule}"


def test_what_a_job_demands_of_its_network_can_be_taken_back_while_it_waits_for_that() -> None:
    rules = [rule for rule, _ in RULES[""] if "oldSelf.network" in rule]
    assert rules == ["self.network.encryption == oldSelf.network.encryption || self.suspend"]


def test_the_name_is_bounded_so_that_pod_names_fit() -> None:
    assert SCHEMA["properties"]["metadata"]["properties"]["name"]["maxLength"] == 40


def test_the_file_is_fresh_and_small_enough_for_kubectl_apply() -> None:
    path = ROOT / "crds" / "lmj.dev_livemigrationjobs.yaml"
    assert yaml.safe_load(path.read_text()) == crd(), "run: make crd"
    assert path.stat().st_size < 256 * 1024


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_fit_the_schema_and_the_models(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] != "LiveMigrationJob":
            continue
        assert (
            misfits(
                defaulted(document, SCHEMA),
                SCHEMA
                | {
                    "properties": SCHEMA["properties"]
                    | {"metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
                },
            )
            == []
        )
        load_job(document, base=path.parent)


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({"training": {"batchSize": 0}}, False),
        ({"training": {"learningRate": 0}}, False),
        ({"training": {"schedule": "linear"}}, False),
        ({"training": {"learnRate": 1}}, False),
        ({"dataset": {"text": []}}, False),
        ({"training": {"maxGradNorm": None}}, True),
        ({"template": {"spec": {"anything": [1]}}}, True),
    ],
)
def test_schema_and_models_agree(spec: dict[str, Any], fits: bool) -> None:
    parts: dict[str, Any] = SMALLEST["spec"]
    document = SMALLEST | {"spec": parts | {name: parts.get(name, {}) | part for name, part in spec.items()}}
    assert (misfits(defaulted(document, SCHEMA), SCHEMA) == []) is fits
    if fits:
        load_job(document, base=Path("/"))
    else:
        with pytest.raises(SpecError):
            load_job(document, base=Path("/"))


def test_a_choice_between_types_is_refused() -> None:
    class Loose(BaseModel):
        field: int | str = Field(description="Either.")

    with pytest.raises(TypeError, match="not structural"):
        structural(Loose)
