"""The CustomResourceDefinition, derived from the models: what an API server accepts is what :mod:`lmj_api.load` accepts.

pydantic's JSON schema is not structural (``$ref``, ``anyOf`` with null, ``const``, numeric ``exclusiveMinimum``), so
:func:`structural` rewrites it; rules between fields, which the models check in code, are repeated as CEL.
"""

from typing import Any

from pydantic import BaseModel

from lmj_api import names
from lmj_api.spec.job import JobSpec, Metadata
from lmj_api.spec.metric import Metric
from lmj_api.spec.model import Task
from lmj_api.spec.script_rules import IS_SCRIPT, rules_of_scripts
from lmj_api.spec.scripted import NOT_SAID
from lmj_api.spec.streaming_rules import rules_of_streams
from lmj_api.status import JobStatus
from lmj_api.view import MOST_RANKS

Schema = dict[str, Any]

_KEPT = ("enum", "format", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "pattern", "required")
_FREE = "x-kubernetes-preserve-unknown-fields"

_FIXED = "cannot be changed after the job is made: make a new job"
_VOLUME = [
    ("has(self.claimName) != has(self.size)", "set exactly one of claimName (an existing claim) and size (a claim that is made)"),
    (
        "!has(self.claimName) || !(has(self.storageClassName) || has(self.accessMode) || self.deleteWithJob)",
        "storageClassName, accessMode and deleteWithJob belong to size, not to the existing claim claimName",
    ),
]


def _metrics() -> list[tuple[str, str]]:
    """Which tasks have the metric that the best weights are chosen by; a class of the user's own has the loss alone."""
    task = f"(has(self.model.task) ? self.model.task : '{Task.SEQUENCE_CLASSIFICATION}')"
    asked = "has(self.training.metricForBestModel) && self.training.metricForBestModel"
    return [
        (
            f"!({asked} == '{metric}') || (!has(self.model.python) && {task} in {[str(name) for name in metric.tasks]})",
            f"training.metricForBestModel {metric} is for model.task {', '.join(metric.tasks)}",
        )
        for metric in Metric
        if metric.tasks != tuple(Task)
    ]


_OF_MODELS: list[tuple[str, str]] = [
    (
        "has(self.model.python) != has(self.dataset.text)",
        "dataset.text names the column of the text, or the two of a pair; model.python gets all columns: leave it out there",
    ),
    (
        "(has(self.model.python) || (has(self.model.task) && self.model.task in ['CausalLM', 'MaskedLM']))"
        " != has(self.dataset.label)",
        "dataset.label is the column of the label: every model.task but CausalLM and MaskedLM needs it, and model.python gets all columns",
    ),
    (
        "(!has(self.model.python) && has(self.model.task) && self.model.task == 'CausalLM') || !(has(self.dataset.packing) && self.dataset.packing)",
        "dataset.packing is for model.task CausalLM",
    ),
    (
        "(!has(self.model.python) && has(self.model.task) && self.model.task == 'MaskedLM') || !has(self.dataset.mlmProbability)",
        "dataset.mlmProbability is for model.task MaskedLM",
    ),
    (
        "!(has(self.model.task) && self.model.task == 'MaskedLM') || !has(self.dataset.text) || size(self.dataset.text) == 1",
        "dataset.text: model.task MaskedLM takes one column of texts",
    ),
    (
        "!(has(self.model.task) && self.model.task in ['CausalLM', 'MaskedLM', 'Regression', 'QuestionAnswering'])"
        " || !has(self.model.labels)",
        "model.labels: model.task CausalLM, MaskedLM, Regression and QuestionAnswering have no labels",
    ),
    (
        "!has(self.model.python) && !(has(self.model.task)"
        " && self.model.task in ['MultiLabelClassification', 'Regression', 'QuestionAnswering'])"
        " || self.training.labelSmoothing == 0.0",
        "training.labelSmoothing is for a model.task whose loss is a cross entropy over labels or tokens",
    ),
    (
        "!has(self.model.python) || !(has(self.training.groupByLength) && self.training.groupByLength)",
        "training.groupByLength is for a model.task, whose rows have tokens: with model.python leave it out",
    ),
    (
        "!has(self.model.python) || !matches(self.model.python, ':__main__$')"
        " || (self.model.python == self.dataset.source + ':__main__' && self.pipeline.stages == 1)",
        "a script in model.python (train.py:__main__) has the rows, and its model is one stage: dataset.source is the same file,"
        " pipeline.stages 1",
    ),
    (
        "!has(self.model.python) || !matches(self.model.python, ':__main__$') || !(has(self.dataset.config)"
        " || has(self.dataset.revision) || has(self.dataset.splits.validation) || has(self.dataset.splits.test)"
        " || self.dataset.splits.train != 'train' || self.dataset.splits.validationFraction != 0.0"
        " || self.dataset.splits.testFraction != 0.0 || has(self.dataset.maxSamples.train)"
        " || has(self.dataset.maxSamples.validation) || has(self.dataset.maxSamples.test))",
        "a script in model.python says which rows there are: leave out all of dataset but its source",
    ),
    (
        "!(has(self.model.task) && self.model.task == 'QuestionAnswering') || !has(self.dataset.text)"
        " || size(self.dataset.text) == 2",
        "dataset.text: model.task QuestionAnswering takes two columns, of the question and of the text that answers it",
    ),
    (
        "!has(self.model.python) || !(has(self.output.int8) && self.output.int8)",
        "output.int8 is for models of transformers: with model.python leave it out",
    ),
    *_metrics(),
    *rules_of_streams(),
    (
        "!has(self.output.hub) || self.output.hub.content != 'Adapter' || has(self.model.lora)",
        "output.hub.content Adapter needs model.lora: push the Model, or train an adapter",
    ),
]
"""What holds between the model, the dataset and other parts, of jobs that have both."""

RULES: dict[str, list[tuple[str, str]]] = {
    "": [
        (
            "self.training.batchSize % self.pipeline.microBatches == 0",
            "training.batchSize must be a multiple of pipeline.microBatches",
        ),
        (
            f"{IS_SCRIPT} || (self.pipeline.microBatches * self.training.gradientAccumulationSteps) % self.dataParallel.shards == 0",
            "pipeline.microBatches times training.gradientAccumulationSteps must be a multiple of dataParallel.shards",
        ),
        *((f"!has(self.model) || !has(self.dataset) || {rule}", message) for rule, message in _OF_MODELS),
        (
            "self.dataParallel.minReplicas <= self.dataParallel.replicas",
            "dataParallel.minReplicas is at most dataParallel.replicas",
        ),
        (
            f"{IS_SCRIPT} || self.dataParallel.replicas <= self.dataParallel.shards",
            "dataParallel.replicas is at most dataParallel.shards",
        ),
        (
            f"({IS_SCRIPT} ? 1 : self.pipeline.stages) * self.dataParallel.replicas <= {MOST_RANKS}",
            f"pipeline.stages times dataParallel.replicas is the number of ranks, at most {MOST_RANKS}",
        ),
        (
            f"{IS_SCRIPT} || !has(self.dataParallel.maxReplicas) || self.dataParallel.maxReplicas <= self.dataParallel.shards",
            "dataParallel.maxReplicas is at most dataParallel.shards",
        ),
        (
            "!has(self.dataParallel.maxReplicas) || self.dataParallel.replicas <= self.dataParallel.maxReplicas",
            "dataParallel.replicas is at most dataParallel.maxReplicas",
        ),
        (
            "self.dataParallel.replicas == 1 || (!self.recovery.hotStandby && !has(self.recovery.memorySnapshot))",
            "recovery.hotStandby and recovery.memorySnapshot keep what other replicas hold anyway: leave them out",
        ),
        (
            f"{IS_SCRIPT} || !has(self.recovery.straggler) || self.dataParallel.shards > 1",
            "recovery.straggler compares replicas: leave it out, or raise dataParallel.shards",
        ),
        (
            "self.training.warmupSteps == 0 || self.training.warmupRatio == 0.0",
            "training: set warmupSteps or warmupRatio, not both",
        ),
        *(
            (
                f"!has(self.training.scheduleOptions.{name}) || self.training.schedule == '{schedule}'",
                f"training.scheduleOptions.{name} is for schedule {schedule}",
            )
            for name, schedule in (("cycles", "CosineWithRestarts"), ("power", "Polynomial"), ("endLearningRate", "Polynomial"))
        ),
        (
            "self.training.schedule != 'Polynomial' || (has(self.training.scheduleOptions.endLearningRate)"
            " ? self.training.scheduleOptions.endLearningRate : 0.0000001) < self.training.learningRate",
            "training.scheduleOptions.endLearningRate is less than training.learningRate",
        ),
        (
            "self.training.momentum == 0.0 || self.training.optimizer == 'SGD'",
            "training.momentum is for optimizer SGD",
        ),
        *rules_of_scripts(),
        # Each pod carries the spec that it was made with, and all ranks of a view must agree on these.
        *(
            (f"self.{part} == oldSelf.{part} || self.suspend", f"{part} can only be changed while suspend is true")
            for part in ("training", "output", "storage", "network.encryption")
        ),
        (
            "(has(self.checkpoint.path) ? self.checkpoint.path : '') == "
            "(has(oldSelf.checkpoint.path) ? oldSelf.checkpoint.path : '') || self.suspend",
            "checkpoint.path can only be changed while suspend is true",
        ),
        (
            "!has(self.command) || !has(oldSelf.command) || self.command == oldSelf.command || self.suspend",
            "command can only be changed while suspend is true",
        ),
    ],
    "strategy": [("self == oldSelf", f"strategy {_FIXED}")],
    "dataParallel": [
        (
            "(has(self.shards) ? self.shards : 1) == (has(oldSelf.shards) ? oldSelf.shards : 1)",
            f"dataParallel.shards {_FIXED}",
        ),
    ],
    "command": [("self.args != ['-m']", "args: -m is followed by the name of a module, as in [-m, my_package.train]")],
    "pipeline": [
        (
            "(has(self.microBatches) ? self.microBatches : 4) == (has(oldSelf.microBatches) ? oldSelf.microBatches : 4)",
            f"pipeline.microBatches {_FIXED}",
        ),
        (
            "(has(self.firstInHalves) ? self.firstInHalves : true) == (has(oldSelf.firstInHalves) ? oldSelf.firstInHalves : true)",
            f"pipeline.firstInHalves {_FIXED}",
        ),
        ("!has(self.layers) || size(self.layers) == self.stages", "layers needs one number for each stage"),
    ],
    "model": [
        ("self == oldSelf", f"model {_FIXED}"),
        (
            "(has(self.source) ? 1 : 0) + (has(self.scratch) ? 1 : 0) + (has(self.python) ? 1 : 0) == 1",
            "set exactly one of source (pretrained weights), scratch (random weights) and python (a class of your own)",
        ),
        ("has(self.python) || !has(self.pythonSha256)", "pythonSha256 is of the file in python"),
        (
            "!has(self.python) || (!has(self.labels) && !has(self.dropout) && !has(self.lora) && !has(self.revision)"
            " && (!has(self.task) || self.task == 'SequenceClassification'))",
            "with python leave out task, labels, dropout, lora and revision",
        ),
    ],
    "model.scratch": [("self.hiddenSize % self.heads == 0", "hiddenSize must be a multiple of heads")],
    "dataset": [
        ("self == oldSelf", f"dataset {_FIXED}"),
        (
            "self.splits.validationFraction + self.splits.testFraction < 1.0",
            "splits: validationFraction + testFraction leave no training rows: make their sum less than 1",
        ),
        (
            "!has(self.splits.validation) || self.splits.validationFraction == 0.0",
            "splits: set validation or validationFraction, not both",
        ),
        ("!has(self.splits.test) || self.splits.testFraction == 0.0", "splits: set test or testFraction, not both"),
    ],
    "recovery.rules.[]": [
        (
            "has(self.exitCodes) || has(self.logPattern)",
            "a rule needs exitCodes or logPattern: without either it would match every exit",
        ),
    ],
    "output.trackers.[]": [
        (
            "self.kind != 'MLflow' || has(self.uri)",
            "uri is missing: MLflow needs the address of its tracking server, as in http://mlflow:5000",
        ),
        (
            "!has(self.space) || (self.kind == 'Trackio' && !has(self.uri))",
            "space is for Trackio, in the place of uri: leave one of them out",
        ),
        (
            "!(has(self.offline) && self.offline) || (self.kind == 'WandB' && !has(self.uri))",
            "offline is for WandB without uri: leave one of them out",
        ),
    ],
    "storage.output": _VOLUME,
    "storage.data": _VOLUME,
}
"""CEL rules of the spec, by path: ``(rule, message)``. Null counts as unset for ``has``. A rule that reads a field with a
default stands above the part that has the default ``{}``: a server checks that ``{}`` before it fills it in."""

LISTS: dict[str, Schema] = {
    "spec.model.labels": {"x-kubernetes-list-type": "set"},
    "status.conditions": {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
}
"""How lists merge; a set also refuses an item that is there twice."""

COLUMNS = [
    ("Phase", "string", ".status.phase", 0, "The one-word summary"),
    ("Replicas", "string", ".status.replicaSummary", 0, "Replicas that train, of those that are wanted, where steps are shared"),
    ("Step", "integer", ".status.progress.step", 0, "Committed steps"),
    ("Epoch", "number", ".status.progress.epoch", 0, "Epochs done"),
    ("Loss", "number", ".status.progress.loss", 0, "Mean loss of the newest step"),
    ("Restarts", "integer", ".status.restarts", 0, "Workers and pods replaced"),
    ("Migrations", "integer", ".status.migrations", 0, "Ranks moved"),
    ("ETA", "integer", ".status.progress.etaSeconds", 0, "Seconds to the last step, estimated"),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Time since the job was made"),
    ("Stages", "integer", ".status.stages", 1, "Pipeline stages of each replica that trains"),
    ("Standbys", "integer", ".status.warmStandbys", 1, "Pods without a rank that are ready to take one"),
    ("Checkpoint", "integer", ".status.checkpoint.step", 1, "Step of the newest durable checkpoint"),
    ("Message", "string", ".status.message", 1, "Why the job is in its phase"),
]
"""What ``kubectl get lmj`` prints: name, type, path, priority (1: only with ``-o wide``), description."""


def crd() -> Schema:
    """The CustomResourceDefinition as a mapping, ready for a YAML or JSON writer."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT],
                "categories": ["all"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _root()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.dataParallel.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, "description": about, "priority": priority}
                        for name, kind, path, priority, about in COLUMNS
                    ],
                }
            ],
        },
    }


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of ``model``: every node has a type, references are inlined, null is ``nullable``."""
    schema = model.model_json_schema(by_alias=True)
    return _convert(schema, schema.get("$defs", {}))


def _root() -> Schema:
    spec, status = structural(JobSpec), _without_defaults(structural(JobStatus))
    for path, rules in RULES.items():
        _at(spec, path)["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in rules]
    # Which strategies need them, a rule says.
    spec["required"] = [name for name in spec["required"] if name not in NOT_SAID]
    root = {
        "type": "object",
        "description": "One training job whose ranks move between nodes while it trains.",
        "required": ["metadata", "spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # An API server allows rules on the name alone here.
            "metadata": {"type": "object", "properties": {"name": _name()}},
            "spec": spec,
            "status": status,
        },
    }
    for path, how in LISTS.items():
        _at(root, path).update(how)
    return root


def _name() -> Schema:
    name: Schema = structural(Metadata)["properties"]["name"]
    return {key: value for key, value in name.items() if key != "description"}


def _at(schema: Schema, path: str) -> Schema:
    """The schema of the field at ``path`` (``model.scratch``); ``[]`` is a list's item."""
    for part in filter(None, path.split(".")):
        schema = schema["items"] if part == "[]" else schema["properties"][part]
    return schema


def _convert(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """``node`` of pydantic's schema made structural. Raises TypeError for a choice between types, which is not."""
    while "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        node = {**target, **node, "description": _joined(node.get("description"), target.get("description"))}
        if "$ref" in target:
            node["$ref"] = target["$ref"]
        else:
            del node["$ref"]
    if "anyOf" in node:
        others = [option for option in node["anyOf"] if option.get("type") != "null"]
        if len(others) != 1:
            raise TypeError(f"a choice between types is not structural: {node['anyOf']}")
        outer = {key: value for key, value in node.items() if key != "anyOf"}
        about = _joined(node.get("description"), others[0].get("description"))
        return {**_convert({**others[0], **outer, "description": about}, definitions), "nullable": True}
    result: Schema = {key: node[key] for key in ("type", "description") if node.get(key)}
    result |= {key: node[key] for key in _KEPT if key in node}
    if "const" in node:
        result["enum"] = [node["const"]]
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in node:
            result |= {bound: node[exclusive], exclusive: True}
    if "items" in node:
        result["items"] = _convert(node["items"], definitions)
    if "properties" in node:
        result["properties"] = {name: _convert(child, definitions) for name, child in node["properties"].items()}
    elif node.get("type") == "object":
        values = node.get("additionalProperties")
        # A mapping of anything (a pod template) is kept as it is.
        result |= {"additionalProperties": _convert(values, definitions)} if isinstance(values, dict) else {_FREE: True}
    if node.get("default") is not None:
        # A part of the spec defaults to {}, and its fields to their own defaults.
        result["default"] = {} if "properties" in node else node["default"]
    return result


def _joined(field: str | None, kind: str | None) -> str | None:
    """The description of a field and that of its type, without saying the same twice."""
    if not field or not kind:
        return field or kind
    return kind if kind.startswith(field.rstrip(".")) else f"{field} {kind}"


def _without_defaults(node: Schema) -> Schema:
    """``node`` for a status: the operator writes what is, the server adds nothing."""
    return {
        key: {name: _without_defaults(child) for name, child in value.items()}
        if key == "properties"
        else _without_defaults(value)
        if key in ("items", "additionalProperties")
        else value
        for key, value in node.items()
        if key != "default"
    }
