"""The test cluster itself, for real: nodes, pods, services, names, power cuts, and that nothing is left of it."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, ClusterError, Unavailable
from cluster.api import ApiError
from cluster.faults import Refuse, Rule
from cluster.images import BASE
from cluster.network import remove_link
from cluster.process import wait_until
from cluster.proxy import Proxy, in_thread

pytestmark = pytest.mark.e2e
PODS = "/api/v1/namespaces/default/pods"


def pod(name: str, command: list[str], own: Cluster, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    environment = own.environment_mounts()
    security = {"runAsUser": 1000, "runAsNonRoot": True, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    container = {
        "name": "main",
        "image": BASE,
        "command": command,
        "env": environment.env,
        "volumeMounts": [*environment.volume_mounts, {"name": "tmp", "mountPath": "/tmp"}],
        "securityContext": {**security, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    volumes = [*environment.volumes, {"name": "tmp", "emptyDir": {}}, *spec.pop("volumes", [])]
    container["volumeMounts"] += spec.pop("mounts", [])
    body = {"containers": [container], "volumes": volumes, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": body}


def phase(own: Cluster, name: str) -> str:
    return str(own.api.get(f"{PODS}/{name}")["status"].get("phase", ""))


def run_pod(own: Cluster, body: dict[str, Any], seconds: float = 60) -> str:
    """What the pod printed; it must succeed."""
    name = body["metadata"]["name"]
    own.api.apply(f"{PODS}/{name}", body)
    try:
        wait_until(f"the end of pod {name}", lambda: phase(own, name) in ("Succeeded", "Failed"), seconds)
    except ClusterError:
        print(own.kubectl("describe", "pod", name))
        raise
    log = own.kubectl("logs", name)
    assert phase(own, name) == "Succeeded", log
    own.api.delete(f"{PODS}/{name}")
    return log


def start_pod(own: Cluster, body: dict[str, Any], seconds: float = 60) -> float:
    """Seconds from create to Ready."""
    name = body["metadata"]["name"]
    start = time.monotonic()
    own.api.apply(f"{PODS}/{name}", body)

    def ready() -> bool:
        conditions = own.api.get(f"{PODS}/{name}")["status"].get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    try:
        wait_until(f"pod {name} Ready", ready, seconds, every=0.05)
    except ClusterError:
        print(own.kubectl("describe", "pod", name))
        raise
    return time.monotonic() - start


def test_three_nodes_are_ready(own_cluster: Cluster) -> None:
    assert sorted(own_cluster.ready_nodes()) == ["node1", "node2", "node3"]
    assert "node2                on Ready" in own_cluster.status()
    own_cluster.up(3, owned=True)  # a second time changes nothing
    nodes = own_cluster.api.get("/api/v1/nodes")["items"]
    assert all(node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.34.") for node in nodes)


def test_a_pod_without_root_runs_this_python_with_torch(own_cluster: Cluster) -> None:
    python = str(own_cluster.environment_mounts().python)
    program = (
        "import os, ssl, sqlite3, torch, lmj_trainer; print(os.getuid(), torch.ones(3).sum().item(), os.environ['HOSTNAME'])"
    )
    assert run_pod(own_cluster, pod("torch", [python, "-c", program], own_cluster), 120) == "1000 3.0 torch\n"


def test_services_have_names_and_addresses_that_work_from_another_node(own_cluster: Cluster) -> None:
    serve = ["busybox", "httpd", "-f", "-p", "8080", "-h", "/etc"]
    body = pod("web", serve, own_cluster, {"app": "web"}, nodeName="node1")
    body["spec"]["containers"][0]["volumeMounts"] = []  # busybox is the image's own
    seconds = start_pod(own_cluster, body)
    print(f"pod create to Ready: {seconds:.2f} s")
    port = {"port": 80, "targetPort": 8080}
    for name, extra in (("web", {}), ("web-headless", {"clusterIP": "None"})):
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": {"app": "web"}, "ports": [port], **extra},
        }
        own_cluster.api.apply(f"/api/v1/namespaces/default/services/{name}", service)
    address = own_cluster.api.get(f"{PODS}/web")["status"]["podIP"]
    program = """
import socket, time, urllib.request
deadline = time.monotonic() + 30
def until(what):
    while True:
        try:
            return what()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
print(until(lambda: urllib.request.urlopen("http://web/hostname", timeout=5).read().decode().strip()))
print(until(lambda: socket.gethostbyname("web-headless.default.svc.cluster.local")))
"""
    python = str(own_cluster.environment_mounts().python)
    said = run_pod(own_cluster, pod("client", [python, "-c", program], own_cluster, nodeName="node2"))
    assert said.split() == ["web", address]
    own_cluster.api.delete(f"{PODS}/web")


def test_a_claim_binds_to_a_shared_volume_and_all_nodes_see_it(own_cluster: Cluster) -> None:
    folder = own_cluster.shared_volume("shared-test")
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "shared", "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared-test"}, "spec": spec}
    own_cluster.api.apply("/api/v1/namespaces/default/persistentvolumeclaims/shared-test", claim)
    bound = "/api/v1/namespaces/default/persistentvolumeclaims/shared-test"
    wait_until("the claim's volume", lambda: own_cluster.api.get(bound)["status"].get("phase") == "Bound", 30)
    volumes = [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared-test"}}]
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    for number in (1, 2):
        command = ["sh", "-c", f"echo {number} >> /shared/seen; cat /shared/seen"]
        said = run_pod(
            own_cluster, pod(f"sharer{number}", command, own_cluster, volumes=volumes, mounts=mounts, nodeName=f"node{number}")
        )
    assert said == "1\n2\n" == (folder / "seen").read_text()


@pytest.mark.slow
def test_a_power_cut_is_noticed_and_the_node_comes_back_with_its_pods(own_cluster: Cluster) -> None:
    body = pod("victim", ["sleep", "1000"], own_cluster, nodeName="node3", restartPolicy="Always")
    start_pod(own_cluster, body)
    start = time.monotonic()
    own_cluster.power_cut("node3")
    assert own_cluster.status()[7].startswith("node3                off")
    own_cluster.wait_ready("node3", ready=False, seconds=60)
    print(f"power cut to NotReady: {time.monotonic() - start:.1f} s")
    start = time.monotonic()
    own_cluster.power_on("node3")
    print(f"power on to Ready: {time.monotonic() - start:.1f} s")

    def again() -> bool:
        status = own_cluster.api.get(f"{PODS}/victim")["status"]
        containers = status.get("containerStatuses", [])
        return bool(containers) and containers[0]["restartCount"] >= 1 and containers[0]["ready"]

    wait_until("the pod again", again, 90)
    own_cluster.api.delete(f"{PODS}/victim")


@pytest.mark.slow
def test_a_pulled_cable_is_noticed_and_its_pods_go_on(own_cluster: Cluster) -> None:
    start_pod(own_cluster, pod("steady", ["sleep", "1000"], own_cluster, nodeName="node2", restartPolicy="Always"))
    own_cluster.link_down("node2")
    try:
        own_cluster.wait_ready("node2", ready=False, seconds=60)
    finally:
        own_cluster.link_up("node2")
    own_cluster.wait_ready("node2", seconds=60)
    assert own_cluster.api.get(f"{PODS}/steady")["status"]["containerStatuses"][0]["restartCount"] == 0
    own_cluster.api.delete(f"{PODS}/steady")


@pytest.mark.slow
def test_the_api_server_goes_and_comes(own_cluster: Cluster) -> None:
    own_cluster.stop("apiserver")
    assert not own_cluster.api.ready()
    own_cluster.start("apiserver")
    for name in own_cluster.node_names():
        own_cluster.wait_ready(name)


def test_the_proxy_stands_before_the_real_api_server(own_cluster: Cluster, tmp_path: Path) -> None:
    rules = [Rule(Refuse(409), verbs=frozenset({"create"}), path="/configmaps", times=1)]
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "proxied"}}
    path = "/api/v1/namespaces/default/configmaps"
    with in_thread(Proxy.before(own_cluster.kubeconfig, rules=rules)) as proxy:
        kubectl = [str(own_cluster.binaries().path("kubectl")), f"--kubeconfig={proxy.kubeconfig(tmp_path / 'kubeconfig')}"]
        create = [*kubectl, "create", "-f", "-"]
        refused = subprocess.run(create, input=json.dumps(body), text=True, capture_output=True, timeout=60, check=False)
        assert refused.returncode != 0
        assert "injected" in refused.stderr
        subprocess.run(create, input=json.dumps(body), text=True, capture_output=True, timeout=60, check=True)
        log = [(call.target.verb, call.target.resource, call.status) for call in proxy.calls if call.target.resource]
    assert log == [("create", "configmaps", 409), ("create", "configmaps", 201)]
    own_cluster.api.delete(f"{path}/proxied")
    with pytest.raises(ApiError):
        own_cluster.api.get(f"{path}/proxied")


def traces() -> dict[str, set[str]]:
    """What clusters can leave on a machine: links, routes, firewall rules, mounts, control groups, kernel settings."""

    def lines(*command: str) -> set[str]:
        return set(subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.splitlines())

    settings = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
    return {
        "links": {path.name for path in Path("/sys/class/net").iterdir()},
        "routes": lines("ip", "route"),
        "rules": lines("iptables-save") - {line for line in lines("iptables-save") if line.startswith("#")},
        "mounts": {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()},
        "control groups": {str(path) for path in Path("/sys/fs/cgroup").glob("*/lmj-*")}
        | {str(p) for p in Path("/sys/fs/cgroup").glob("lmj-*")},
        "settings": {f"{name} {Path('/proc/sys', name).read_text().strip()}" for name in settings},
        "folders": {str(path) for folder in ("/var/lib", "/run", "/etc", "/opt", "/var/log") for path in Path(folder).iterdir()},
    }


def processes_of(folder: Path) -> list[str]:
    """Command lines that name a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"{folder}/" in line:
            found.append(line)
    return found


@pytest.fixture
def second(own_cluster: Cluster) -> Iterator[Cluster]:
    cluster = Cluster(f"{own_cluster.name}-b")
    yield cluster
    cluster.down()


@pytest.mark.slow
def test_a_second_cluster_beside_the_first_leaves_nothing_behind(own_cluster: Cluster, second: Cluster) -> None:
    before = traces()
    try:
        second.up(1, owned=True)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert second.ready_nodes() == ["node1"]
    seconds = start_pod(second, pod("short", ["sleep", "1000"], second))
    print(f"pod create to Ready: {seconds:.2f} s")
    assert processes_of(second.folder)
    assert traces() != before
    start = time.monotonic()
    second.down()
    print(f"down: {time.monotonic() - start:.1f} s")
    assert processes_of(second.folder) == []
    assert not second.folder.exists()
    after = traces()
    assert {kind: after[kind] ^ before[kind] for kind in before if after[kind] != before[kind]} == {}
    second.down()  # and again, with nothing there
    assert sorted(own_cluster.ready_nodes()) == ["node1", "node2", "node3"]


@pytest.mark.slow
def test_a_cluster_that_fails_says_why(own_cluster: Cluster, second: Cluster) -> None:
    with pytest.raises(ClusterError, match="no node 'node9'"):
        own_cluster.power_cut("node9")
    with pytest.raises(ClusterError, match="is up with 3 nodes"):
        own_cluster.up(2)
    with pytest.raises(ClusterError, match="is not up"):
        second.node_names()


def test_a_link_that_is_gone_already_is_no_error(own_cluster: Cluster) -> None:
    remove_link("lmj-none")
