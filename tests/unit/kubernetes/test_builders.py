"""Builders: what the API server is given, word for word."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_jobs import SETTINGS, UID, cluster_job, job, job_body

from lmj_api import canary
from lmj_api.problems import SpecError
from lmj_api.run import Run
from lmj_api.spec import LiveMigrationJob, PolicyMode
from lmj_operator.backend.kubernetes import labels
from lmj_operator.backend.kubernetes.build import children
from lmj_operator.backend.kubernetes.build.pod import build_pod, node_selector
from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.backend.kubernetes.trust import shows_token

GOLDEN = Path(__file__).parent / "golden"


def same_as(name: str, *objects: dict[str, Any]) -> None:
    """``LMJ_UPDATE_GOLDEN=1`` writes the file again; what changed is for a person to read."""
    file = GOLDEN / name
    text = yaml.safe_dump_all(objects, sort_keys=True, width=120)
    if os.environ.get("LMJ_UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_the_pod() -> None:
    same_as("pod.yaml", build_pod(job(), SETTINGS, 0, 1))


def test_the_pod_of_a_replica() -> None:
    made = job(pipeline={"stages": 2, "microBatches": 4}, dataParallel={"shards": 4, "replicas": 2})
    same_as("replica.yaml", build_pod(made, SETTINGS, 3, 1))


@pytest.mark.parametrize(("rank", "has"), [(0, True), (1, False), (2, True), (None, True)])
def test_a_credential_is_a_reference_and_only_where_a_pod_may_lead(rank: int | None, has: bool) -> None:
    tracker = {"kind": "WandB", "project": "p", "token": {"name": "tracking", "key": "api-key"}}
    hub = {"repository": "me/tiny", "token": {"name": "tracking", "key": "api-key"}}
    parts = {"pipeline": {"stages": 2, "microBatches": 4}, "dataParallel": {"shards": 2, "replicas": 2}}
    made = job(**parts, output={"path": "/output/tiny", "trackers": [{"kind": "Trackio", "project": "p"}, tracker], "hub": hub})
    env = build_pod(made, SETTINGS, rank, 1)["spec"]["containers"][0]["env"]
    source = {"secretKeyRef": {"name": "tracking", "key": "api-key", "optional": True}}
    wanted = [{"name": f"LMJ_TOKEN_{of}", "valueFrom": source} for of in ("TRACKER_1", "HUB")] if has else []
    assert [entry for entry in env if entry["name"].startswith("LMJ_TOKEN_")] == wanted


@pytest.mark.parametrize("rank", [0, 1, None])
def test_what_leads_to_a_bucket_is_a_reference_that_every_pod_has(rank: int | None) -> None:
    place = {"path": "s3://my-bucket/tiny", "secretName": "keys"}
    made = build_pod(job(checkpoint=place, template={"spec": {"containers": [{"name": "trainer", "envFrom": [
        {"configMapRef": {"name": "more"}}
    ]}]}}), SETTINGS, rank, 1)  # fmt: skip
    container = made["spec"]["containers"][0]
    assert container["envFrom"] == [{"configMapRef": {"name": "more"}}]
    assert [entry for entry in container["env"] if entry["name"].startswith("LMJ_TOKEN_")] == [
        {"name": "LMJ_TOKEN_STORE_FOLDER", "value": "/etc/lmj/store"},
        {"name": "LMJ_TOKEN_STORE_SECRET", "value": "keys"},
    ]
    (volume,) = [volume for volume in made["spec"]["volumes"] if volume["name"] == "store-keys"]
    assert volume["secret"] == {"secretName": "keys", "defaultMode": 0o440}, "all keys, and none that a pod could do without"
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "store-keys"]
    assert mount == {"name": "store-keys", "mountPath": "/etc/lmj/store", "readOnly": True}, "the kubelet renews no subPath"
    assert not [mount for mount in container["volumeMounts"] if "s3" in mount["mountPath"]]


def test_a_standby() -> None:
    made = job(placement={"nodeSelector": {"pool": "train"}, "stages": [{"stage": 1, "nodeSelector": {"gpu": "a"}}]})
    same_as("standby.yaml", build_pod(made, SETTINGS, None, 7))


def test_the_pod_with_a_template_and_placement() -> None:
    made = job(
        placement={"nodeSelector": {"pool": "train"}, "stages": [{"stage": 1, "nodeSelector": {"gpu": "a"}}]},
        storage={"output": {"claimName": "results"}, "data": {"claimName": "corpus"}},
        template={
            "metadata": {"labels": {"team": "nlp", "lmj.dev/job": "other"}, "annotations": {"note": "x"}},
            "spec": {
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "priorityClassName": "high",
                "imagePullSecrets": [{"name": "pull"}],
                "securityContext": {"fsGroup": 1234},
                "volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
                "containers": [
                    {"name": "log", "image": "logger"},
                    {
                        "name": "trainer",
                        "image": "mine:2",
                        "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}},
                        "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "t"}}}],
                        "envFrom": [{"secretRef": {"name": "more"}}],
                    },
                ],
            },
        },
    )
    same_as("pod-template.yaml", build_pod(made, SETTINGS, 1, 3))


def test_the_other_objects() -> None:
    made = job(storage={"output": {"size": "1Gi"}, "data": {"size": "2Gi", "storageClassName": "fast", "deleteWithJob": True}})
    same_as(
        "children.yaml",
        children.build_service(made),
        children.build_network_policy(made, SETTINGS),
        children.build_disruption_budget(made),
        *children.build_claims(made),
    )


def test_a_claim_for_one_stage_need_not_be_shared() -> None:
    made = job(pipeline={"stages": 1, "microBatches": 2})
    assert children.build_claims(made)[0]["spec"]["accessModes"] == ["ReadWriteOnce"]
    many = job(storage={"output": {"size": "1Gi", "accessMode": "ReadWriteOncePod"}})
    assert children.build_claims(many)[0]["spec"]["accessModes"] == ["ReadWriteOncePod"]


def test_an_operator_outside_of_the_cluster_is_let_in_from_anywhere() -> None:
    rules = children.build_network_policy(job(), Settings())["spec"]["ingress"]
    assert "from" not in rules[1]
    assert rules[1]["ports"] == [{"port": 9461, "protocol": "TCP"}]


@pytest.mark.parametrize("rank", [0, 1, None])
def test_each_pod_listens_where_the_policy_lets_nobody_but_its_ranks_in(rank: int | None) -> None:
    env = build_pod(job(), SETTINGS, rank, 1)["spec"]["containers"][0]["env"]
    assert {"name": "LMJ_CANARY_PORT", "value": str(canary.PORT)} in env
    assert canary.PORT != labels.AGENT_PORT
    for settings in (SETTINGS, Settings()):
        ranks, operator = children.build_network_policy(job(), settings)["spec"]["ingress"]
        assert ranks == {"from": [{"podSelector": {"matchLabels": {"lmj.dev/job": "tiny"}}}]}
        assert operator["ports"] == [{"port": labels.AGENT_PORT, "protocol": "TCP"}]


def test_on_a_nodes_own_network_there_is_no_canary_and_no_policy_to_demand() -> None:
    template = {"spec": {"hostNetwork": True}}
    env = build_pod(job(template=template), SETTINGS, 0, 1)["spec"]["containers"][0]["env"]
    assert "LMJ_CANARY_PORT" not in [entry["name"] for entry in env]
    with pytest.raises(
        SpecError, match=r"^spec.network.policy: Required, and no NetworkPolicy holds for pods on their node's network"
    ):
        job(template=template, network={"policy": "Required"})
    assert job(network={"policy": "Required"}).spec.network.policy is PolicyMode.REQUIRED


def test_the_agent_in_the_pod_reads_the_job_that_was_meant() -> None:
    made = job(template={"spec": {"nodeSelector": {"a": "b"}}})
    carried = build_pod(made, SETTINGS, 0, 1)["metadata"]["annotations"]["lmj.dev/job-spec"]
    read = LiveMigrationJob.model_validate_json(carried)
    assert read.spec.template is None
    assert read.spec.dataset.source == "/opt/lmj/examples/data/reviews.csv"
    assert read.spec.output.path == "/output/runs/tiny"
    assert read.metadata.run == Run(id=UID, begun=1767225600.0)


@pytest.mark.parametrize(
    ("source", "data", "path"),
    [
        ("glue", False, "glue"),
        ("./saved", True, "/data/saved"),
        ("/mnt/x.csv", True, "/mnt/x.csv"),
        ("x.parquet", True, "/data/x.parquet"),
        ("x.csv", False, "/opt/lmj/examples/x.csv"),
    ],
)
def test_paths_are_those_of_pods(source: str, data: bool, path: str) -> None:
    storage = {"output": {"size": "1Gi"}, **({"data": {"claimName": "d"}} if data else {})}
    made = job(storage=storage, dataset={"source": source, "text": ["t"], "label": "l"})
    assert made.spec.dataset.source == path


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"storage": {}}, "spec.storage.output: missing; 2 ranks share their checkpoints"),
        ({"output": {"path": "/srv/x"}}, "spec.output.path: /srv/x is on no volume that the pods can write"),
        ({"checkpoint": {"path": "/tmp/x"}}, "spec.checkpoint.path: /tmp/x is on /tmp, a volume of each pod alone"),
        ({"output": {"path": "~/x"}}, "spec.output.path: '~/x': a pod has no home folder"),
        ({"storage": {"output": {"size": "1Gi", "claimName": "x"}}}, "set exactly one of claimName"),
        ({"template": {"spce": {}}}, "spec.template.spce: unknown field; did you mean spec?"),
        ({"template": {"spec": []}}, "spec.template.spec: a mapping is needed, not a list"),
        ({"template": {"spec": {"restartPolicy": "Always"}}}, "restartPolicy: must be Never"),
        ({"template": {"spec": {"containers": [{"image": "x"}]}}}, "spec.template.spec.containers[0]: name is missing"),
        ({"template": {"spec": {"containers": [{"name": "trianer"}]}}}, "the trainer's container is called trainer"),
        ({"template": {"spec": {"containers": [{"name": "trainer", "command": ["x"]}]}}}, "command: the operator sets it"),
        ({"template": {"metadata": {"name": "x"}}}, "spec.template.metadata.name: only labels and annotations"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        job(**spec)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_image_is_refused() -> None:
    with pytest.raises(SpecError, match="no trainer image: start the operator with --trainer-image"):
        cluster_job(job_body(), Settings())


def test_one_stage_needs_no_shared_volume() -> None:
    made = job(pipeline={"stages": 1, "microBatches": 2}, storage={})
    volumes = {v["name"]: v for v in build_pod(made, SETTINGS, 0, 1)["spec"]["volumes"]}
    assert volumes["output"] == {"name": "output", "emptyDir": {}}


def empty_dirs(**spec: Any) -> dict[str, dict[str, str]]:
    volumes = build_pod(job(**spec), SETTINGS, 0, 1)["spec"]["volumes"]
    return {volume["name"]: volume["emptyDir"] for volume in volumes if "emptyDir" in volume}


OWN = {"model": {"python": "my_task.py:MyTask"}, "dataset": {"source": "data/reviews.csv"}}
LIMITED = {"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"memory": "4Gi"}}}]}}
SMALL = {"medium": "Memory", "sizeLimit": "1Gi"}


@pytest.mark.parametrize(
    ("spec", "shared"),
    [
        ({}, {"sizeLimit": "64Mi"}),
        ({"template": LIMITED}, {"sizeLimit": "64Mi"}),
        (OWN, {"sizeLimit": "8Gi"}),
        ({**OWN, "template": LIMITED}, {}),
    ],
    ids=["ours", "ours, limited", "the user's", "the user's, limited"],
)
def test_what_a_pod_can_take_of_its_node_is_bounded_where_that_is_known(spec: dict[str, Any], shared: dict[str, str]) -> None:
    found = empty_dirs(**spec)
    assert found == {"run": {"sizeLimit": "1Mi"}, "tmp": {}, "dshm": {"medium": "Memory", **shared}}
    limited = "template" in spec
    assert all("sizeLimit" in each or limited for each in found.values() if each.get("medium") == "Memory"), (
        "memory of the node that nothing bounds"
    )


def test_a_template_bounds_what_is_not_known() -> None:
    mine = [{"name": "tmp", "emptyDir": {"sizeLimit": "20Gi"}}, {"name": "dshm", "emptyDir": SMALL}]
    found = empty_dirs(template={"spec": {"volumes": mine}})
    assert found["tmp"] == {"sizeLimit": "20Gi"}
    assert found["dshm"] == SMALL


@pytest.mark.parametrize(
    ("parts", "mode"),
    [
        ({"shards": 2}, "ReadWriteMany"),
        ({"shards": 2, "maxReplicas": 1}, "ReadWriteOnce"),
        ({"shards": 2, "replicas": 2}, "ReadWriteMany"),
    ],
)
def test_the_output_volume_is_for_as_many_ranks_as_there_may_be(parts: dict[str, int], mode: str) -> None:
    made = job(pipeline={"stages": 1, "microBatches": 2}, dataParallel=parts)
    assert children.build_claims(made)[0]["spec"]["accessModes"] == [mode]


def test_a_volume_of_the_template_will_do() -> None:
    template = {
        "spec": {
            "volumes": [{"name": "nfs", "nfs": {"server": "s", "path": "/"}}],
            "containers": [{"name": "trainer", "volumeMounts": [{"name": "nfs", "mountPath": "/output"}]}],
        }
    }
    assert job(storage={}, template=template).spec.output.path == "/output/runs/tiny"


def test_a_pod_with_a_relay() -> None:
    parts: tuple[dict[str, Any], ...] = ({}, {"network": {"encryption": "Required"}})
    specs = [build_pod(job(**part), SETTINGS, 0, 1)["spec"] for part in parts]
    plain, made = (spec["containers"][0] for spec in specs)
    assert [word for word in made["command"] if word not in plain["command"]] == [
        "--relay",
        "9463",
        "--token=/etc/lmj/token/token",
    ]
    assert [port["containerPort"] for port in plain["ports"]] == [9461]
    assert made["ports"] == [*plain["ports"], {"name": "relay", "containerPort": 9463, "protocol": "TCP"}]
    assert [each["livenessProbe"]["httpGet"].get("scheme") for each in (plain, made)] == [None, "HTTPS"]
    assert [shows_token(spec) for spec in specs] == [False, True]


def test_the_token_of_a_pod_is_for_the_operator_alone() -> None:
    spec = build_pod(job(network={"encryption": "Required"}), SETTINGS, 0, 1)["spec"]
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "token")
    (source,) = volume["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "agents.lmj.dev"
    (mount,) = (mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "token")
    assert f"--token={mount['mountPath']}/{source['serviceAccountToken']['path']}" in spec["containers"][0]["command"]
    assert mount["readOnly"]
    assert spec["automountServiceAccountToken"] is False


def test_a_pod_may_have_a_relay_and_demand_a_policy() -> None:
    made = job(network={"encryption": "Required", "policy": "Required"})
    container = build_pod(made, SETTINGS, 0, 1)["spec"]["containers"][0]
    assert len({labels.AGENT_PORT, canary.PORT, labels.RELAY_PORT}) == 3
    assert {"name": "LMJ_CANARY_PORT", "value": str(canary.PORT)} in container["env"]
    assert [port["containerPort"] for port in container["ports"]] == [labels.AGENT_PORT, labels.RELAY_PORT]
    ranks, operator = children.build_network_policy(made, SETTINGS)["spec"]["ingress"]
    assert "ports" not in ranks, "heartbeats do not go through relays, and have ports that the kernel chooses"
    assert operator["ports"] == [{"port": labels.AGENT_PORT, "protocol": "TCP"}], "no port at which it knocks"


def test_pods_of_a_pod_security_standard() -> None:
    """The restricted standard, rule by rule."""
    spec = build_pod(job(), SETTINGS, 0, 1)["spec"]
    container = spec["containers"][0]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {next(iter(v.keys() - {"name"})) for v in spec["volumes"]} <= {
        "secret",
        "downwardAPI",
        "emptyDir",
        "persistentVolumeClaim",
    }


def test_a_pod_stays_away_from_nodes_by_name_and_is_not_another_pod_for_that() -> None:
    plain, away = build_pod(job(), SETTINGS, 0, 1), build_pod(job(), SETTINGS, 0, 1, ("n1", "n2"))
    assert "podAntiAffinity" in plain["spec"]["affinity"]
    assert away["spec"]["affinity"].pop("nodeAffinity") == {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchFields": [
                        {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]},
                        {"key": "metadata.name", "operator": "NotIn", "values": ["n2"]},
                    ]
                }
            ]
        }
    }
    assert away == plain


def test_a_pod_is_bound_to_a_node_by_its_name_and_by_the_scheduler() -> None:
    plain, there = build_pod(job(), SETTINGS, 0, 1), build_pod(job(), SETTINGS, 0, 1, ("n1",), "n3")
    assert there["spec"]["affinity"].pop("nodeAffinity") == {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchFields": [
                        {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]},
                        {"key": "metadata.name", "operator": "In", "values": ["n3"]},
                    ]
                }
            ]
        }
    }
    assert there == plain


@pytest.mark.parametrize(
    ("migration", "needed"),
    [
        ({}, 4),
        ({"strategy": "Checkpoint"}, 4),
        ({"onCordon": "Checkpoint"}, 4),
        ({"onCordon": "Never"}, 1),
        ({"strategy": "Never"}, 1),
    ],
)
def test_evictions_are_refused_where_ranks_leave_a_node_by_themselves(migration: dict[str, str], needed: int) -> None:
    assert children.build_disruption_budget(job(migration=migration))["spec"]["minAvailable"] == needed


def selected(terms: dict[str, Any]) -> list[tuple[int, str, dict[str, str]]]:
    """Weight, kind of place, and labels besides the job's, of each term."""
    found = []
    for term in terms["preferredDuringSchedulingIgnoredDuringExecution"]:
        labels = dict(term["podAffinityTerm"]["labelSelector"]["matchLabels"])
        assert labels.pop("lmj.dev/job") == "tiny"
        found.append((term["weight"], term["podAffinityTerm"]["topologyKey"].partition("/")[2], labels))
    return found


FOUR = {"pipeline": {"stages": 1, "microBatches": 4}, "dataParallel": {"shards": 4, "replicas": 2}}


def test_copies_of_a_stage_go_apart_and_the_ranks_of_a_replica_together() -> None:
    spec = build_pod(job(**{**FOUR, "pipeline": {"stages": 2, "microBatches": 4}}), SETTINGS, 3, 1)["spec"]
    apart, together = spec["affinity"]["podAntiAffinity"], spec["affinity"]["podAffinity"]
    assert selected(apart) == [(100, "hostname", {"lmj.dev/rank": "3"}), (1, "zone", {"lmj.dev/stage": "1"})]
    assert selected(together) == [(1, "hostname", {"lmj.dev/replica": "1"}), (2, "zone", {"lmj.dev/replica": "1"})]
    (constraint,) = spec["topologySpreadConstraints"]
    assert constraint["topologyKey"] == "kubernetes.io/hostname", "a node without a zone is spread over too"
    assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"
    assert constraint["labelSelector"]["matchLabels"] == {"lmj.dev/job": "tiny", "lmj.dev/stage": "1"}


def test_a_follower_is_not_drawn_to_the_node_of_the_rank_that_it_follows() -> None:
    """All other ranks of a replica there count less than that one."""
    stages = 64
    spec = build_pod(
        job(pipeline={"stages": stages, "microBatches": 4}, dataParallel={"shards": 2}, model={"scratch": {"layers": stages}}),
        SETTINGS,
        0,
        2,
    )["spec"]
    (away, _, rank), *_ = selected(spec["affinity"]["podAntiAffinity"])
    (near, where, _), *_ = selected(spec["affinity"]["podAffinity"])
    assert (rank, where) == ({"lmj.dev/rank": "0"}, "hostname")
    assert away > near * stages


def test_replicas_of_one_stage_are_spread_and_those_that_there_may_be() -> None:
    for parts in ({"shards": 4, "replicas": 2}, {"shards": 4}):
        affinity = build_pod(job(**{**FOUR, "dataParallel": parts}), SETTINGS, 0, 1)["spec"]["affinity"]
        assert "podAffinity" not in affinity
        assert selected(affinity["podAntiAffinity"])[1:] == [(1, "zone", {"lmj.dev/stage": "0"})]


@pytest.mark.parametrize(
    "parts",
    [{"dataParallel": {"shards": 4, "maxReplicas": 1}}, {"placement": {"spread": False}}],
    ids=["one replica for good", "not spread"],
)
def test_nothing_is_spread_over_zones(parts: dict[str, Any]) -> None:
    spec = build_pod(job(**{**FOUR, "dataParallel": {"shards": 4}, **parts}), SETTINGS, 0, 1)["spec"]
    assert selected(spec["affinity"]["podAntiAffinity"]) == [(100, "hostname", {"lmj.dev/rank": "0"})]
    assert ("topologySpreadConstraints" in spec) == ("placement" not in parts)


def test_a_template_spreads_in_its_own_way() -> None:
    mine = {"topologyKey": "kubernetes.io/hostname", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}
    zones = {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    template = {"spec": {"topologySpreadConstraints": [mine, zones], "affinity": {"podAntiAffinity": None}}}
    spec = build_pod(job(**FOUR, template=template), SETTINGS, 0, 1)["spec"]
    selector = {"labelSelector": {"matchLabels": {"lmj.dev/job": "tiny", "lmj.dev/stage": "0"}}}
    assert spec["topologySpreadConstraints"] == [{**mine, **selector}, zones]
    assert spec["affinity"] == {}


def test_the_labels_that_a_ranks_node_must_have() -> None:
    placement = {"nodeSelector": {"pool": "a"}, "stages": [{"stage": 1, "nodeSelector": {"pool": "b", "zone": "z"}}]}
    made = job(placement=placement, template={"spec": {"nodeSelector": {"disk": "ssd"}}})
    assert node_selector(made, 0) == {"pool": "a", "disk": "ssd"}
    assert node_selector(made, 1) == {"pool": "b", "zone": "z", "disk": "ssd"}
    assert node_selector(made, None) == node_selector(made, 0)
    for rank in (0, 1, None):
        assert build_pod(made, SETTINGS, rank, 1)["spec"]["nodeSelector"] == node_selector(made, rank)
    assert node_selector(job(), 0) == {}


def test_a_templates_affinity_holds_besides() -> None:
    here = {"key": "zone", "operator": "In", "values": ["z"]}
    there = {"key": "zone", "operator": "In", "values": ["y"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [here]}, {"matchExpressions": [there]}]}
    preferred = [{"weight": 1, "preference": {"matchExpressions": [here]}}]
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": required,
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        },
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
    }
    made = build_pod(job(template={"spec": {"affinity": affinity}}), SETTINGS, 0, 1, ("n1",))["spec"]["affinity"]
    away = [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]
    assert made["podAntiAffinity"] == affinity["podAntiAffinity"]
    assert made["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == preferred
    assert made["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == [
        {"matchExpressions": [here], "matchFields": away},
        {"matchExpressions": [there], "matchFields": away},
    ]
