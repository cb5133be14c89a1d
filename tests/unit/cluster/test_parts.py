"""The parts of the test cluster that need neither root nor a network."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from cluster import Cluster, ClusterError, binaries
from cluster.__main__ import main
from cluster.admission import cel, policy
from cluster.environment import environment_mounts
from cluster.images import write_archive
from cluster.network import Network
from cluster.node import Node
from cluster.pki import Pki
from cluster.process import Process, remains, started_at, tail, wait_until


def test_a_process_that_nobody_takes_away_has_ended(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "100"])
    assert started_at(child.pid) is not None
    asleep = f"{child.pid} sleep S, parent {os.getpid()}"
    wait_until("it to sleep", lambda: asleep in remains(os.getpid()), 10)
    child.kill()
    wait_until("the zombie", lambda: started_at(child.pid) is None, 10)
    assert f"{child.pid} sleep Z" in remains(child.pid)
    child.wait()
    assert "No such file" in remains(child.pid)


def test_a_process_is_known_by_pid_and_start_time(tmp_path: Path) -> None:
    process = Process("sleeper", tmp_path)
    pid = process.start(["sleep", "100"])
    assert process.pid() == pid == process.start(["sleep", "100"])
    process.stop()
    assert process.pid() is None
    process.stop()
    other = subprocess.Popen(["sleep", "100"])
    try:
        process.pidfile.write_text(f"{other.pid} 1")  # the same pid, another process
        process.stop()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_process_that_died_says_why(tmp_path: Path) -> None:
    process = Process("failing", tmp_path)
    process.start(["sh", "-c", "echo the reason; exit 1"])

    def check() -> None:
        process.check()

    with pytest.raises(ClusterError, match=r"(?s)failing is not running.*the reason"):
        wait_until("its end", check, 5, every=0.02)


def test_a_wait_ends_at_its_deadline_with_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {n}\n" for n in range(100)))
    with pytest.raises(ClusterError, match=r"(?s)the moon: not within 0.1 s.*line 99"):
        wait_until("the moon", lambda: False, 0.1, log, every=0.01)
    assert "line 84" not in tail(log)


def test_two_clusters_share_no_name_and_no_address() -> None:
    one, two = Network("one", 201), Network("two", 202)
    assert one.bridge != two.bridge
    assert one.host != two.host
    assert one.loopback != two.loopback
    assert all(len(Network("a-very-long-name-of-a-cluster", 201).link(number)) <= 15 for number in (1, 100))
    assert (
        len({one.node_pods(number) for number in range(1, 101)} | {one.node_address(number) for number in range(1, 101)}) == 200
    )


def test_an_archive_is_what_container_runtimes_read(tmp_path: Path) -> None:
    out = tmp_path / "x.tar"
    write_archive(out, "docker.io/lmj/x:1", b"layer", ["/x"])
    with tarfile.open(out) as archive:
        content = {member.name: archive.extractfile(member) for member in archive}
        files = {name: file.read() for name, file in content.items() if file}
    (manifest,) = json.loads(files["manifest.json"])
    config = json.loads(files[manifest["Config"]])
    assert manifest["RepoTags"] == ["docker.io/lmj/x:1"]
    assert [files[layer] for layer in manifest["Layers"]] == [b"layer"]
    assert config["config"]["Entrypoint"] == ["/x"]
    assert manifest["Layers"][0].startswith(config["rootfs"]["diff_ids"][0].removeprefix("sha256:"))


def test_the_environment_has_every_folder_on_the_way_to_the_interpreter(tmp_path: Path) -> None:
    real, linked, checkout = tmp_path / "versions" / "3.11.7", tmp_path / "versions" / "3.11", tmp_path / "checkout"
    venv = checkout / ".venv"
    for folder in (real / "bin", venv / "bin"):
        folder.mkdir(parents=True)
    (real / "bin" / "python3.11").touch()
    linked.symlink_to("3.11.7")
    (venv / "bin" / "python").symlink_to(linked / "bin" / "python3.11")
    environment = environment_mounts(venv, checkout)
    assert environment.folders == (Path("/usr"), checkout, linked, real)
    assert [volume["name"] for volume in environment.volumes] == [mount["name"] for mount in environment.volume_mounts]
    assert all(mount["readOnly"] for mount in environment.volume_mounts)
    assert environment.env[0]["value"].startswith(f"{venv}/bin:")


def test_an_environment_that_is_a_link_is_mounted_where_it_is_and_imports_this_checkout(tmp_path: Path) -> None:
    real, checkout, shared = tmp_path / "python", tmp_path / "tree", tmp_path / "main" / ".venv"
    for folder in (real / "bin", checkout, shared / "bin"):
        folder.mkdir(parents=True)
    (real / "bin" / "python3").touch()
    (shared / "bin" / "python").symlink_to(real / "bin" / "python3")
    (checkout / ".venv").symlink_to(shared)
    environment = environment_mounts(checkout / ".venv", checkout)
    assert environment.folders == (Path("/usr"), checkout, shared, real)
    path = next(variable["value"] for variable in environment.env if variable["name"] == "PYTHONPATH")
    assert path.split(":") == [str(checkout / name) for name in ("crds", "operator", "trainer")]


def test_this_interpreter_is_in_its_environment() -> None:
    real = Path(os.path.realpath(sys.executable))
    assert any(folder in real.parents for folder in environment_mounts().folders)


def test_programs_are_pinned_and_their_cache_knows_it(tmp_path: Path) -> None:
    assert binaries.kubernetes_version().startswith("v1.34.")
    tools = [line for module in binaries.MODULES for line in (module.folder / "go.mod").read_text().splitlines()]
    for program in (program for module in binaries.MODULES for program in module.programs):
        assert any(line.endswith(f"/{program}") for line in tools), program
    assert len({module.digest() for module in binaries.MODULES}) == len(list(binaries.GO.iterdir())) == 3
    assert all((module.folder / "go.sum").stat().st_size > 0 for module in binaries.MODULES)


def test_a_node_finds_its_settings(tmp_path: Path) -> None:
    network = Network("x", 201)
    node = Node(2, 3, "x", tmp_path, network, Pki(tmp_path, "https://10.201.0.1:6443"))
    assert (node.name, node.cgroup, node.first_process()) == ("node2", "lmj-x-node2", None)
    with pytest.raises(ClusterError, match="node2 is off"):
        node.inside(["true"])


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "x" * 41])
def test_names_that_can_not_be(name: str, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="is no name for a cluster"):
        Cluster(name, tmp_path)


def test_down_of_nothing_and_its_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--run", str(tmp_path)]) == 0
    assert main(["status", "--run", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "dev: down\n"


def test_without_root_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    # That many can't be: should it not look who asks, nothing is started.
    assert main(["up", "--nodes", "0", "--run", str(tmp_path)]) == 3
    assert "needs root on Linux" in capsys.readouterr().err


def test_a_value_becomes_a_literal_of_cel() -> None:
    value = [{"name": 'a"b', "hostPath": {"path": "/usr"}, "readOnly": True}]
    assert cel(value, "Object.spec.volumes") == (
        '[Object.spec.volumes{name: "a\\"b", hostPath: Object.spec.volumes.hostPath{path: "/usr"}, readOnly: true}]'
    )


def test_the_policy_is_about_the_images_that_it_is_made_for() -> None:
    spec = policy(environment_mounts(), ["lmj-trainer"])["spec"]
    assert [c["expression"] for c in spec["matchConditions"]] == [
        "object.spec.containers.all(c, c.image.matches('^(lmj-trainer):'))"
    ]
    expression = spec["mutations"][0]["applyConfiguration"]["expression"]
    assert 'object.spec.containers.map(c, Object.spec.containers{image: "docker.io/lmj/base:1"' in expression
    assert "name: c.name}" in expression
