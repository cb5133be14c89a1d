"""Who may make a job: the chart's admission policy on a real API server, by rights of the one who asks and by what is asked for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from chart_fixture import CHART, CHECKOUT
from cluster import Cluster
from cluster.process import wait_until

pytestmark = pytest.mark.e2e

NAMESPACES = {"lmj-open": None, "lmj-baseline": "baseline", "lmj-restricted": "restricted"}
"""With the Pod Security level of each."""
JOBS = [{"apiGroups": ["lmj.dev"], "resources": ["livemigrationjobs", "livemigrationjobs/scale"], "verbs": ["*"]}]
PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}]
CLAIMS = [{"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["create"]}]
USERS = {"deputy": JOBS, "engineer": JOBS + PODS, "owner": JOBS + PODS + CLAIMS, "queue": JOBS}
"""What each may do in each of the namespaces. The policy exempts ``queue``."""
SPEC: dict[str, Any] = {
    "model": {"scratch": {}},
    "dataset": {"source": "/data/reviews.csv", "text": ["review"], "label": "label"},
    "output": {"path": "/output/model"},
}
CONTAINER = {"name": "trainer"}

TEMPLATES: dict[str, dict[str, Any] | None] = {
    "nothing": {},
    "null": None,
    "a null spec": {"spec": None},
    "null parts": {"spec": {"securityContext": None, "volumes": None, "containers": [{**CONTAINER, "securityContext": None}]}},
    "labels alone": {"metadata": {"labels": {"team": "ml"}}},
    "resources": {"spec": {"containers": [{**CONTAINER, "resources": {"limits": {"memory": "4Gi"}}}]}},
    "a secret": {"spec": {"volumes": [{"name": "s", "secret": {"secretName": "other"}}]}},
    "hostPath": {"spec": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}},
    "hostNetwork": {"spec": {"hostNetwork": True}},
    "hostPID": {"spec": {"hostPID": True}},
    "hostIPC": {"spec": {"hostIPC": True}},
    "host port": {"spec": {"containers": [{**CONTAINER, "ports": [{"containerPort": 80, "hostPort": 80}]}]}},
    "privileged": {"spec": {"containers": [{**CONTAINER, "securityContext": {"privileged": True}}]}},
    "a privileged init container": {"spec": {"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}},
    "a capability": {"spec": {"containers": [{**CONTAINER, "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}]}},
    "root": {"spec": {"securityContext": {"runAsUser": 0}}},
    "not non-root": {"spec": {"containers": [{**CONTAINER, "securityContext": {"runAsNonRoot": False}}]}},
    "escalation": {"spec": {"containers": [{**CONTAINER, "securityContext": {"allowPrivilegeEscalation": True}}]}},
    "nfs": {"spec": {"volumes": [{"name": "n", "nfs": {"server": "s", "path": "/"}}]}},
}
HOST = ["hostPath", "hostNetwork", "hostPID", "hostIPC", "host port", "privileged", "a privileged init container"]
REFUSED = {
    "lmj-open": [],
    "lmj-baseline": HOST,
    "lmj-restricted": [*HOST, "a capability", "root", "not non-root", "escalation", "nfs"],
}


@pytest.fixture(scope="module")
def own(own_cluster: Cluster) -> Iterator[Cluster]:
    """The policy is in force, and all users have their rights."""
    objects: list[dict[str, Any]] = []
    for namespace, level in NAMESPACES.items():
        labels = {} if level is None else {"pod-security.kubernetes.io/enforce": level}
        objects.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
        for user, rules in USERS.items():
            metadata = {"name": user, "namespace": namespace}
            version = "rbac.authorization.k8s.io/v1"
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user}
            subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
            objects.append({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": rules})
            objects.append(
                {"apiVersion": version, "kind": "RoleBinding", "metadata": metadata, "roleRef": role, "subjects": subjects}
            )
    show = ("--show-only", "templates/admission.yaml", "--set", "admission.exemptUsers={queue}")
    policy = own_cluster.helm("template", "lmj", CHART, "--namespace", "lmj-admission", "--kube-version", "1.34.0", *show)
    crd = CHECKOUT / "charts" / "lmj" / "files" / "lmj.dev_livemigrationjobs.yaml"
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    try:
        own_cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(crd))
        wait_until("jobs are served", lambda: call(own_cluster, None, "get", "lmj", "--all-namespaces") == "", 60)
        own_cluster.kubectl("apply", "-f", "-", stdin=text.encode())
        own_cluster.kubectl("apply", "-f", "-", stdin=policy.encode())
        wait_until("the policy in force", lambda: asked(own_cluster, "deputy", "lmj-open", {}) != "", 60)
        yield own_cluster
    finally:
        own_cluster.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=policy.encode())
        own_cluster.kubectl("delete", "-f", "-", "--ignore-not-found", "--wait=false", stdin=text.encode())


def job(namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "lmj.dev/v1alpha1",
        "kind": "LiveMigrationJob",
        "metadata": {"name": "asked", "namespace": namespace},
        "spec": {**SPEC, **spec},
    }


def call(own: Cluster, user: str | None, *words: str, stdin: str | None = None) -> str:
    """What the API server refused it with, one line; empty: it did not."""
    command = [str(own.binaries().path("kubectl")), f"--kubeconfig={own.kubeconfig}", *words, *([f"--as={user}"] if user else [])]
    done = subprocess.run(command, input=stdin, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode in (0, 1)
    return "" if done.returncode == 0 else " ".join(done.stderr.split())


def asked(own: Cluster, user: str | None, namespace: str, spec: dict[str, Any], *words: str) -> str:
    return call(own, user, "create", "-f", "-", "--dry-run=server", *words, stdin=json.dumps(job(namespace, spec)))


def test_who_may_not_make_pods_makes_no_job(own: Cluster) -> None:
    said = asked(own, "deputy", "lmj-open", {})
    assert "spec: a job makes pods, and deputy may not create pods in namespace lmj-open: ask for that right" in said
    assert asked(own, "engineer", "lmj-open", {}) == ""
    assert asked(own, None, "lmj-open", {}) == ""


def test_a_claim_takes_the_right_to_make_claims(own: Cluster) -> None:
    made, named = {"storage": {"output": {"size": "1Gi"}}}, {"storage": {"output": {"claimName": "mine"}}}
    assert "engineer may not create persistentvolumeclaims in namespace lmj-open" in asked(own, "engineer", "lmj-open", made)
    assert asked(own, "owner", "lmj-open", made) == ""
    assert asked(own, "engineer", "lmj-open", named) == ""


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_what_the_namespace_refuses_of_pods_is_refused_of_jobs(own: Cluster, namespace: str) -> None:
    said = {what: asked(own, "engineer", namespace, {"template": template}) for what, template in TEMPLATES.items()}
    print(json.dumps({what: text[-160:] for what, text in said.items() if text}, indent=1))
    assert [what for what, text in said.items() if text] == REFUSED[namespace]
    assert all("spec.template.spec" in text and "Pod Security" in text for text in said.values() if text)


@pytest.mark.parametrize("template", [{"spec": [1]}, {"spec": {"containers": {"a": 1}}}, {"spec": {"volumes": ["x"]}}])
def test_a_template_that_is_none_passes_by_no_rule(own: Cluster, template: dict[str, Any]) -> None:
    """An expression that cannot be computed refuses."""
    assert asked(own, "engineer", "lmj-restricted", {"template": template}) != ""


def test_a_job_that_is_there_is_changed_by_who_may_make_it_alone(own: Cluster) -> None:
    """Its metadata, and its size within its limits, by others too: garbage collectors, autoscalers, queues that are exempt."""
    where = ("--namespace", "lmj-open")
    spec = {"dataParallel": {"shards": 2, "replicas": 1, "maxReplicas": 2}}
    assert call(own, "engineer", "create", "-f", "-", stdin=json.dumps(job("lmj-open", spec))) == ""
    try:
        suspend = ("patch", "lmj", "asked", *where, "--type=merge", "--patch", '{"spec": {"suspend": true}}')
        image = ("patch", "lmj", "asked", *where, "--type=merge", "--patch", '{"spec": {"activeDeadlineSeconds": 99}}')
        assert "deputy may not create pods" in call(own, "deputy", *image)
        assert call(own, "deputy", "label", "lmj", "asked", *where, "seen=yes") == ""
        assert call(own, "deputy", "scale", "lmj", "asked", *where, "--replicas=2") == ""
        assert call(own, "queue", *suspend) == ""
        assert call(own, "engineer", *image) == ""
    finally:
        assert call(own, None, "delete", "lmj", "asked", *where) == ""
