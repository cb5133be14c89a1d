"""What the chart renders to."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_chart import CHART, CHECKOUT, Object, helm, of_kind, one, render
from operator_calls import Call, calls_in_code
from typer.testing import CliRunner

import lmj_operator
from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.cli.main import app

pytestmark = pytest.mark.integration

CRD = "livemigrationjobs.lmj.dev"
NOT_A_CALL: set[Call] = {("lmj.dev", "livemigrationjobs/finalizers", "update")}
"""What an admission plugin asks for where owner references block deletion."""
EVERYTHING: Object = {
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}, "dashboard": {"enabled": True}},
    "networkPolicy": {"enabled": True},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "system-cluster-critical",
    "podLabels": {"team": "ml"},
    "podAnnotations": {"note": "yes"},
    "extraArgs": ["--grace-seconds=120"],
    "extraEnv": [{"name": "NO_PROXY", "value": "*"}],
    "serviceAccount": {"annotations": {"owner": "ml"}},
    "watch": {"namespaces": ["one", "two"]},
}


def operator_pod(objects: list[Object]) -> Object:
    pod: Object = one(objects, "Deployment")["spec"]["template"]
    return pod


def operator_container(objects: list[Object]) -> Object:
    (container,) = operator_pod(objects)["spec"]["containers"]
    return dict(container)


def calls_allowed(rules: list[Object]) -> set[Call]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_chart_has_the_version_of_the_project() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"]


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_lint(values: Object) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), values=values).stdout


def test_defaults_render_the_operator_and_its_rights_alone() -> None:
    kinds = sorted(each["kind"] for each in render())
    roles = ["ClusterRole"] * 3 + ["ClusterRoleBinding"]
    admission = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
    others = ["CustomResourceDefinition", "Deployment", "Pod", "Service", "ServiceAccount"]
    assert kinds == sorted([*roles, *admission, *others])


def test_who_may_make_jobs_is_checked_unless_it_is_switched_off() -> None:
    assert not of_kind(render({"admission": {"enabled": False}}), "ValidatingAdmissionPolicy")
    old = helm("template", "lmj", str(CHART), "--kube-version", "1.29.0").stdout
    assert "ValidatingAdmissionPolicy" not in old, "it is stable since 1.30"


def test_everything_on_renders_the_rest() -> None:
    objects = render(EVERYTHING)
    monitor = one(objects, "ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    service = one(objects, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert one(objects, "NetworkPolicy")["spec"]["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}]}]
    spec = operator_pod(objects)["spec"]
    assert spec["nodeSelector"] == {"pool": "system"}
    assert spec["priorityClassName"] == "system-cluster-critical"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert {"name": "NO_PROXY", "value": "*"} in operator_container(objects)["env"]
    assert one(objects, "ServiceAccount")["metadata"]["annotations"] == {"owner": "ml"}


def test_there_is_one_operator_and_never_two_at_a_time() -> None:
    spec = one(render(), "Deployment")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_pods_are_restricted() -> None:
    objects = render(EVERYTHING)
    for spec in (operator_pod(objects)["spec"], one(objects, "Pod")["spec"]):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
        for volume in spec.get("volumes", []):
            assert "hostPath" not in volume


def test_probes_ask_where_the_operator_answers() -> None:
    container = operator_container(render())
    assert [port["containerPort"] for port in container["ports"]] == [8080]
    assert "--listen=0.0.0.0:8080" in container["args"]
    for probe, path in {"livenessProbe": "/healthz", "readinessProbe": "/readyz", "startupProbe": "/healthz"}.items():
        assert container[probe]["httpGet"] == {"path": path, "port": "http"}


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_the_command_has_every_option_that_the_chart_gives(values: Object) -> None:
    container = operator_container(render(values))
    assert container["command"] == ["lmj", "operator"]
    described = CliRunner().invoke(app, ["operator", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).output
    for argument in container["args"]:
        assert argument.split("=")[0] in described, argument


def test_jobs_know_the_operator_by_its_labels_whatever_the_release_is_called() -> None:
    for release, values in (("lmj", {}), ("other", {"nameOverride": "thing", "podLabels": {"app.kubernetes.io/component": "x"}})):
        labels = operator_pod(render(values, release=release))["metadata"]["labels"]
        assert Settings().labels.items() <= labels.items()
        assert "--own-namespace=$(POD_NAMESPACE)" in operator_container(render(values, release=release))["args"]


def test_the_service_selects_the_operator_and_not_the_test_pod() -> None:
    objects = render()
    selector = one(objects, "Service")["spec"]["selector"]
    assert selector.items() <= operator_pod(objects)["metadata"]["labels"].items()
    assert not selector.items() <= one(objects, "Pod")["metadata"]["labels"].items()
    assert one(objects, "Deployment")["spec"]["selector"]["matchLabels"] == selector


class TestImages:
    def test_tags_are_the_charts_version(self) -> None:
        version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
        container = operator_container(render())
        assert container["image"] == f"lmj-operator:{version}"
        assert f"--trainer-image=lmj-trainer:{version}" in container["args"]

    def test_a_digest_wins_over_a_tag(self) -> None:
        digest = "sha256:" + "0" * 64
        image = {"repository": "REGISTRY/op", "tag": "1", "digest": digest, "pullPolicy": "Always"}
        trainer = {"repository": "REGISTRY/tr", "tag": "2", "pullPolicy": "Never"}
        objects = render({"image": image, "trainerImage": trainer})
        container = operator_container(objects)
        assert (container["image"], container["imagePullPolicy"]) == (f"REGISTRY/op@{digest}", "Always")
        assert {"--trainer-image=REGISTRY/tr:2", "--image-pull-policy=Never"} <= set(container["args"])
        assert one(objects, "Pod")["spec"]["containers"][0]["image"] == container["image"]

    def test_without_a_trainer_image_each_job_names_its_own(self) -> None:
        args = operator_container(render({"trainerImage": {"repository": ""}}))["args"]
        assert not [each for each in args if each.startswith(("--trainer-image", "--image-pull-policy"))]


class TestAgentKeys:
    def mounted(self, objects: list[Object]) -> Object:
        """The Secret's part of the volume that the operator reads its keys from."""
        container = operator_container(objects)
        assert "--agent-keys=/etc/lmj/agent-keys" in container["args"]
        (mount,) = (mount for mount in container["volumeMounts"] if mount["mountPath"] == "/etc/lmj/agent-keys")
        assert mount["readOnly"] is True
        (volume,) = (each for each in operator_pod(objects)["spec"]["volumes"] if each["name"] == mount["name"])
        return dict(volume["secret"])

    def test_none_is_made_where_nobody_can_see_whether_there_is_one(self) -> None:
        """Each rendering would make another, with which all trainer pods are replaced. With a cluster: tests/e2e/test_quickstart.py."""
        objects = render()
        assert not of_kind(objects, "Secret")
        assert self.mounted(objects) == {"secretName": "lmj-agent-keys", "defaultMode": 0o440}

    def test_one_of_somebody_elses_is_mounted(self) -> None:
        assert self.mounted(render({"agentKeys": {"secretName": "mine"}}))["secretName"] == "mine"


class TestDefinition:
    def test_it_is_that_of_the_project_and_is_kept(self) -> None:
        made = one(render(), "CustomResourceDefinition")
        source = yaml.safe_load((CHECKOUT / "crds" / "lmj.dev_livemigrationjobs.yaml").read_text())
        assert made["metadata"]["name"] == CRD
        assert made["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        assert made["spec"] == source["spec"]

    def test_it_goes_with_the_chart_when_not_kept(self) -> None:
        made = one(render({"crds": {"keep": False}}), "CustomResourceDefinition")
        assert "helm.sh/resource-policy" not in (made["metadata"].get("annotations") or {})

    def test_it_can_be_left_out(self) -> None:
        assert not of_kind(render({"crds": {"enabled": False}}), "CustomResourceDefinition")

    def test_kubectl_apply_can_carry_it(self) -> None:
        text = (CHART / "files" / "lmj.dev_livemigrationjobs.yaml").read_text()
        assert len(json.dumps(yaml.safe_load(text))) < 256 * 1024


class TestRights:
    def test_the_role_allows_the_calls_in_the_code_and_no_more(self) -> None:
        role = one(render(), "ClusterRole", "lmj-system-lmj")
        assert calls_allowed(role["rules"]) - NOT_A_CALL == calls_in_code(Path(lmj_operator.__file__).parent)

    @pytest.mark.parametrize("values", [{}, EVERYTHING, {"watch": {"namespaces": ["lmj-system"]}}])
    def test_nobody_gets_a_right_on_secrets(self, values: Object) -> None:
        roles = [*of_kind(render(values), "ClusterRole"), *of_kind(render(values), "Role")]
        assert roles
        for role in roles:
            assert not [call for call in calls_allowed(role["rules"]) if call[1].startswith("secrets")]
        assert "secrets" not in json.dumps([role["rules"] for role in roles])

    def test_no_wildcards(self) -> None:
        for role in [*of_kind(render(EVERYTHING), "ClusterRole"), *of_kind(render(EVERYTHING), "Role")]:
            assert "*" not in json.dumps(role["rules"])

    def test_a_list_of_namespaces_takes_roles_there_and_only_nodes_of_the_cluster(self) -> None:
        objects = render({"watch": {"namespaces": ["one", "two"]}})
        everywhere = calls_allowed(one(render(), "ClusterRole", "lmj-system-lmj")["rules"])
        cluster = calls_allowed(one(objects, "ClusterRole", "lmj-system-lmj")["rules"])
        assert {resource for _, resource, _ in cluster} == {"nodes"}
        roles = of_kind(objects, "Role")
        assert [role["metadata"]["namespace"] for role in roles] == ["one", "two"]
        for role in roles:
            assert calls_allowed(role["rules"]) | cluster == everywhere
        for binding in of_kind(objects, "RoleBinding"):
            assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "lmj", "namespace": "lmj-system"}]
        assert {"--namespace=one", "--namespace=two"} <= set(operator_container(objects)["args"])

    def test_without_namespaces_all_are_watched(self) -> None:
        objects = render()
        assert not of_kind(objects, "Role")
        assert not [each for each in operator_container(objects)["args"] if each.startswith("--namespace")]

    def test_two_releases_share_no_cluster_scoped_name(self) -> None:
        def names(namespace: str) -> set[str]:
            objects = render({"crds": {"enabled": False}}, namespace=namespace)
            return {each["metadata"]["name"] for each in objects if each["kind"].startswith("ClusterRole")}

        assert not names("one") & names("two")

    def test_rights_can_be_somebody_elses_to_give(self) -> None:
        objects = render({"rbac": {"create": False, "aggregate": False}, "serviceAccount": {"create": False, "name": "mine"}})
        assert not [each for each in objects if each["kind"] in ("ClusterRole", "ClusterRoleBinding", "ServiceAccount")]
        assert operator_pod(objects)["spec"]["serviceAccountName"] == "mine"
        refused = helm(
            "template", "lmj", str(CHART), "--kube-version", "1.34.0", values={"serviceAccount": {"create": False}}, check=False
        )
        assert refused.returncode != 0
        assert "serviceAccount.name is needed" in refused.stderr

    def test_views_and_edits_are_added_to_the_clusters_own_roles(self) -> None:
        objects = render()
        viewer, editor = (one(objects, "ClusterRole", f"lmj-system-lmj-{who}") for who in ("viewer", "editor"))
        assert {verb for _, _, verb in calls_allowed(viewer["rules"])} == {"get", "list", "watch"}
        assert viewer["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
        assert "rbac.authorization.k8s.io/aggregate-to-view" not in editor["metadata"]["labels"]
        assert ("lmj.dev", "livemigrationjobs", "create") in calls_allowed(editor["rules"])
        # Status is the operator's.
        assert not any(resource.endswith("/status") for _, resource, _ in calls_allowed(editor["rules"]))
        # kubectl scale reads the number, and patches it.
        assert ("lmj.dev", "livemigrationjobs/scale", "get") in calls_allowed(viewer["rules"])
        assert ("lmj.dev", "livemigrationjobs/scale", "patch") in calls_allowed(editor["rules"])


def test_the_test_pod_asks_for_each_right_with_the_operators_account() -> None:
    objects = render(EVERYTHING)
    pod = one(objects, "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["serviceAccountName"] == operator_pod(objects)["spec"]["serviceAccountName"]
    (container,) = pod["spec"]["containers"]
    environment = {each["name"]: json.loads(each["value"]) for each in container["env"]}
    assert environment["NAMESPACES"] == ["one", "two"]
    assert calls_allowed(environment["NAMESPACED_RULES"]) == calls_allowed(of_kind(objects, "Role")[0]["rules"])
    assert environment["CLUSTER_RULES"] == one(objects, "ClusterRole", "lmj-system-lmj")["rules"]
    assert container["args"] == [(CHART / "files" / "installed.py").read_text()]


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    from lmj_operator.backend.kubernetes.status_store import Replicas
    from lmj_operator.controller.metrics import Metrics

    dashboard = json.loads(one(render(EVERYTHING), "ConfigMap")["data"]["livemigrationjobs.json"])
    shown = set(_metric_names(dashboard))
    metrics = Metrics(list, lambda: [("team", "tiny", Replicas(1, 2, 0))])
    metrics.passes.labels("done").inc()
    metrics.count_call("get", "pods", 200)
    told = {line.split("{")[0].split(" ")[0] for line in metrics.render().decode().splitlines() if not line.startswith("#")}
    assert shown
    assert shown <= told


def _metric_names(dashboard: Any) -> list[str]:
    return [name for panel in dashboard["panels"] for t in panel["targets"] for name in re.findall(r"\blmj_\w+", t["expr"])]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"image": {"tga": "1"}}, "tga"),
        ({"replicas": 2}, "replicas"),
        ({"watch": {"namespaces": "one"}}, "namespaces"),
        ({"watch": {"namespaces": ["One"]}}, "namespaces"),
        ({"crds": {"keep": "yes"}}, "keep"),
        ({"image": {"digest": "sha256:12"}}, "digest"),
        ({"image": {"repository": ""}}, "repository"),
        ({"log": {"level": "loud"}}, "level"),
        ({"metrics": {"serviceMonitor": {"interval": "often"}}}, "interval"),
        ({"extraEnv": [{"value": "1"}]}, "extraEnv"),
        ({"admission": {"exemptUsers": ["x'] || true || 'x' in ['"]}}, "exemptUsers"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: Object, complaint: str) -> None:
    refused = helm("template", "lmj", str(CHART), "--kube-version", "1.34.0", values=values, check=False)
    assert refused.returncode != 0
    assert complaint in refused.stderr


def test_every_value_is_in_the_schema_and_in_the_readme() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    readme = (CHART / "README.md").read_text()

    def walk(value: Object, part: Object, path: str) -> None:
        known = part.get("properties")
        if known is None:
            assert f"`{path}`" in readme, path
            return
        assert part["additionalProperties"] is False, path
        assert set(value) == set(known) - {"global", "claims"} or path == "resources", path
        for key, child in value.items():
            here = f"{path}.{key}" if path else key
            if isinstance(child, dict) and path != "resources" and here != "resources":
                walk(child, known[key], here)
            else:
                assert f"`{here}`" in readme or f"`{path}`" in readme, here

    walk(values, schema, "")


def test_notes_say_what_uninstalling_does(tmp_path: Path) -> None:
    # Helm shows notes only when it installs; as a template of an object they need no cluster.
    chart = tmp_path / "lmj"
    shutil.copytree(CHART, chart)
    text = (chart / "templates" / "NOTES.txt").read_text()
    (chart / "templates" / "_notes.tpl").write_text(f'{{{{ define "notes" }}}}{text}{{{{ end }}}}')
    (chart / "templates" / "notes.yaml").write_text('kind: Notes\ntext: {{ include "notes" . | toJson }}\n')

    def notes(values: Object) -> str:
        options = ("--namespace", "x", "--kube-version", "1.34.0", "--show-only", "templates/notes.yaml")
        return str(yaml.safe_load(helm("template", "lmj", str(chart), *options, values=values).stdout)["text"])

    assert "keeps the CustomResourceDefinition and all jobs" in notes({})
    assert "WARNING" in notes({"crds": {"keep": False}})
    assert "namespaces one, two" in notes({"watch": {"namespaces": ["one", "two"]}})
    assert "each job must name an image" in notes({"trainerImage": {"repository": ""}})
