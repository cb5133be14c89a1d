"""A job, a template and a status that are as they should be: what is hostile is made by changing them."""

from typing import Any

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
    "spec": {
        "restartPolicy": "Never",
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
        "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1}],
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [], "matchFields": [{"key": "metadata.name"}]}]}
            }
        },
        "securityContext": {"runAsUser": 1000},
        "volumes": [{"name": "nfs", "nfs": {"server": "s", "path": "/"}}],
        "initContainers": [{"name": "first", "image": "busybox", "env": [{"name": "A", "value": "b"}]}],
        "containers": [
            {
                "name": "trainer",
                "image": "registry.example/trainer:2",
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "envFrom": [{"secretRef": {"name": "s"}}],
                "ports": [{"containerPort": 9000, "name": "x"}],
                "volumeMounts": [{"name": "nfs", "mountPath": "/mnt"}],
                "resources": {"limits": {"cpu": 2}},
            },
            {"name": "sidecar", "image": "busybox"},
        ],
    },
}
"""The operator makes a pod of it."""

SPEC: dict[str, Any] = {
    "pipeline": {"stages": 2, "microBatches": 2},
    "model": {"scratch": {"layers": 2}},
    "dataset": {"source": "data/reviews.csv", "text": ["review"], "label": "sentiment"},
    "training": {"batchSize": 4},
    "output": {"path": "out"},
    "storage": {"output": {"claimName": "output"}},
}
"""A job of two ranks, whose claim is there."""

SCRIPT: dict[str, Any] = {
    "strategy": "Command",
    "command": {"args": ["train.py"]},
    "dataParallel": {"replicas": 2},
    "output": {"path": "out"},
    "storage": {"output": {"claimName": "output"}},
}
"""A job of a script, on as many ranks."""

STATUS: dict[str, Any] = {
    "phase": "Running",
    "phaseSince": 1.0,
    "message": "trains",
    "observedGeneration": 1,
    "serials": {"0": 1, "1": 1},
    "started": 1.0,
    "restarts": 1,
    "ranks": [{"rank": 0, "state": "Running", "pod": "x-r0-1", "incarnation": 1, "step": 3}, {"rank": 1, "state": "NoPod"}],
    "view": {
        "number": 2,
        "members": [{"rank": rank, "pod": f"x-r{rank}-1", "incarnation": 1, "address": f"10.0.0.{rank}:2"} for rank in (0, 1)],
        "resume": {"step": 3},
        "reason": "all are ready",
    },
    "progress": {"step": 3, "steps": 9, "epoch": 0.5},
    "incidents": [
        {
            "time": "2026-01-01T00:00:00Z",
            "kind": "PodGone",
            "rank": 0,
            "pod": "x-r0-1",
            "message": "it is gone",
            "view": 1,
            "step": 2,
        }
    ],
    "standbys": [{"pod": "x-s-1"}],
    "moves": [{"rank": 0, "serial": 1, "reason": "it was asked for", "since": 1.0}],
}
"""Of a job that trains, as an operator writes it."""
