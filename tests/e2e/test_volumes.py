"""``lmj upload``, ``download`` and ``shell`` on a cluster: what arrives, what goes on, what is told, and that no pod is left."""

import hashlib
import json
import os
import pty
import random
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from cluster.cluster import SMALL_MB
from cluster.images import BASE
from cluster_fixture import Target
from operator_jobs import wait_for

from lmj_operator.client.volume.manifest import Wanted, build

pytestmark = pytest.mark.e2e
PART = ".lmj-part-*"


@dataclass(frozen=True)
class Volume:
    """A claim in a namespace of its own, and the folder of this machine that is its volume."""

    target: Target
    namespace: str
    folder: Path
    template: Path

    def command(self, *arguments: str) -> list[str]:
        start = [sys.executable, "-m", "lmj_operator.cli.main", arguments[0], "-n", self.namespace, "--image", BASE]
        return [*start, "--template", str(self.template), *arguments[1:]]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.target.kubeconfig)}

    def lmj(self, *arguments: str, code: int = 0, stdin: bytes = b"") -> tuple[str, str]:
        done = subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, timeout=120, env=self.environment, check=False
        )
        out, error = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{out}\n{error}"
        return out, error

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )

    def pods(self) -> list[str]:
        """Of those that are not on their way out."""
        found = json.loads(self.target.kubectl("get", "pods", "-n", self.namespace, "-o", "json"))["items"]
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def wait_for_part(self, size: int) -> None:
        def there() -> bool:
            return any(part.stat().st_size >= size for part in self.folder.glob(PART))

        wait_for("a part of the file", there, lambda: str(list(self.folder.iterdir())), 60)


def template(own: Cluster) -> dict[str, Any]:
    environment = own.environment_mounts()
    trainer = {"name": "trainer", "env": environment.env, "volumeMounts": environment.volume_mounts}
    return {"spec": {"volumes": environment.volumes, "containers": [trainer]}}


@pytest.fixture(scope="module")
def volume(cluster: Target, own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volume]:
    namespace = f"lmj-{uuid.uuid4().hex[:8]}"
    name = f"volume-{namespace}"
    file = tmp_path_factory.mktemp("volume") / "template.yaml"
    file.write_text(json.dumps(template(own_cluster)))
    made = Volume(cluster, namespace, own_cluster.shared_volume(name, "3Gi"), file)
    cluster.kubectl("create", "namespace", namespace)
    for claim, modes in (("reviews", ["ReadWriteMany"]), ("frozen", ["ReadOnlyMany"])):
        spec = {"accessModes": modes, "storageClassName": "shared", "resources": {"requests": {"storage": "3Gi"}}}
        spec |= {"volumeName": name} if claim == "reviews" else {"storageClassName": "none"}
        document = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim}, "spec": spec}
        cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(document).encode())
    try:
        yield made
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
        cluster.kubectl("delete", "persistentvolume", name, "--ignore-not-found", "--wait=false")


def large_file(path: Path, megabytes: int) -> str:
    """Its SHA-256."""
    chance, hashed = random.Random(megabytes), hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(megabytes):
            block = chance.randbytes(10**6)
            file.write(block)
            hashed.update(block)
    return hashed.hexdigest()


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_a_folder_goes_there_and_back_and_a_shell_sees_it(volume: Volume, tmp_path: Path) -> None:
    source = tmp_path / "data"
    for name in ("a.csv", "deep/er/b.bin", "two\nlines", "späce 😀"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(os.urandom(50_000))
    (source / "link").symlink_to("/etc/passwd")
    out, _ = volume.lmj("upload", str(source), "pvc://reviews/sets/one")
    assert out.startswith("uploaded 4 files (200.0 kB) to pvc://reviews/sets/one in ")
    assert out.endswith(", 1 link left out\n")
    out, _ = volume.lmj("upload", str(source / "a.csv"), "pvc://reviews/sets/one/")
    assert "uploaded 0 files (0 B) to pvc://reviews/sets/one/a.csv" in out
    assert "1 file there already" in out
    out, _ = volume.lmj("download", "pvc://reviews/sets", str(tmp_path / "back"))
    assert out.startswith("downloaded 4 files (200.0 kB) ")
    for name in ("a.csv", "deep/er/b.bin", "two\nlines", "späce 😀"):
        assert (tmp_path / "back" / "one" / name).read_bytes() == (source / name).read_bytes()
    out, error = volume.lmj(
        "shell",
        "pvc://reviews/sets/one",
        "--",
        "sh",
        "-c",
        "pwd; id -u; cat; echo no >&2; exit 7",
        code=7,
        stdin=b"in\n" * 50_000,
    )
    assert out == "/volume/sets/one\n65532\n" + "in\n" * 50_000
    assert error == "no\n"
    assert volume.pods() == []


def most_memory(command: "subprocess.Popen[bytes]") -> int:
    """MiB that it had at most, until it ends. What is counted of a child would begin with what this process has."""
    most = 0
    while command.poll() is None:
        said = Path(f"/proc/{command.pid}/status").read_text()
        most = max(most, *(int(line.split()[1]) >> 10 for line in said.splitlines() if line.startswith("VmHWM")), 0)
        time.sleep(0.05)
    return most


def test_a_command_that_was_killed_goes_on_and_its_pod_is_cleared(volume: Volume, tmp_path: Path) -> None:
    source = tmp_path / "large.bin"
    wanted = large_file(source, 120)
    command = volume.start("upload", str(source), "pvc://reviews/")
    volume.wait_for_part(5_000_000)
    command.kill()
    command.wait(30)
    [left] = volume.pods()
    there = max(part.stat().st_size for part in volume.folder.glob(PART))
    assert 5_000_000 <= there < 120_000_000
    begun = time.monotonic()
    command = volume.start("upload", str(source), "pvc://reviews/")
    assert command.stdout is not None
    memory = most_memory(command)
    out = command.stdout.read().decode()
    assert command.wait(30) == 0
    print(f"rest of 120 MB: {time.monotonic() - begun:.1f} s, {memory} MiB; {out}")
    assert memory < 200  # bounded, whatever the file's size
    sent = float(out.partition("(")[2].partition(" MB")[0])
    assert sent <= (120_000_000 - there) / 1e6 + 0.1
    assert digest(volume.folder / "large.bin") == wanted
    assert list(volume.folder.glob(PART)) == []
    assert left not in volume.pods()
    begun = time.monotonic()
    volume.lmj("download", "pvc://reviews/large.bin", str(tmp_path / "back"))
    print(f"download of 120 MB: {time.monotonic() - begun:.1f} s")
    assert digest(tmp_path / "back" / "large.bin") == wanted
    assert volume.pods() == []


@pytest.mark.parametrize(("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)])
def test_a_signal_takes_the_pod_away(volume: Volume, number: signal.Signals, code: int) -> None:
    command = volume.start("shell", "pvc://reviews", "--", "sleep", "1000")
    wait_for("the pod", lambda: volume.pods() != [], lambda: "no pod", 30)
    time.sleep(1)
    command.send_signal(number)
    _, error = command.communicate(timeout=30)
    assert (command.returncode, error) == (
        code,
        b"error: interrupted\n",
    )
    assert volume.pods() == []


def test_a_server_that_knows_the_older_protocol_alone_carries_files_too(volume: Volume, tmp_path: Path) -> None:
    source = tmp_path / "a.bin"
    wanted = large_file(source, 10)
    program = "from lmj_operator.client.volume import exec; exec.PROTOCOLS = ('v4.channel.k8s.io',)\n"
    program += "from lmj_operator.cli.main import main; main()"
    _, _, _, *arguments = volume.command("upload", str(source), "pvc://reviews/old/")
    subprocess.run([sys.executable, "-c", program, *arguments], env=volume.environment, check=True, timeout=60)
    assert digest(volume.folder / "old" / "a.bin") == wanted


def test_a_shell_has_a_terminal_of_the_size_of_ours(volume: Volume) -> None:
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (33, 77))
    command = subprocess.Popen(
        volume.command("shell", "pvc://reviews"), stdin=its, stdout=its, stderr=its, env=volume.environment
    )
    os.close(its)
    said = b""
    for typed, awaited in ((b"", b"$ "), (b"sleep 1; stty size; sleep 100\n", b"33 77"), (b"\x03", b"$ "), (b"exit 5\n", None)):
        os.write(ours, typed)
        said = b""
        while awaited is None or awaited not in said:
            assert select.select([ours], [], [], 30)[0], said
            try:
                said += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    assert command.wait(30) == 5, said
    assert volume.pods() == []


def test_what_is_wrong_is_told_in_a_line(volume: Volume, own_cluster: Cluster, tmp_path: Path) -> None:
    file, large, small = tmp_path / "a", tmp_path / "large", tmp_path / "small.yaml"
    file.write_text("a")
    large_file(large, SMALL_MB + 8)
    volume.folder.joinpath("closed").mkdir(mode=0o700, exist_ok=True)
    disk = own_cluster.small_disk / "uploads"
    disk.mkdir()
    disk.chmod(0o777)
    of_small = template(own_cluster)
    of_small["spec"]["volumes"].append({"name": "volume", "hostPath": {"path": str(disk)}})
    small.write_text(json.dumps(of_small))
    cases: list[tuple[tuple[str, ...], str]] = [
        (("upload", str(file), "pvc://reviewz/a"), f"error: claim {volume.namespace}/reviewz: there is none of this name"),
        (("upload", str(file), "pvc://frozen/a"), "its only access mode is ReadOnlyMany"),
        (("download", "pvc://reviews/nothing", str(tmp_path)), "error: pvc://reviews/nothing: there is nothing of this name"),
        (("shell", "pvc://frozen", "--timeout", "2"), "has not started after 2 s: Unschedulable: "),
        (("shell", "pvc://reviews", "--image", "127.0.0.1:1/none:1", "--timeout", "3"), "Pull"),
        (("shell", "pvc://reviews", "--image", "no:image:name"), "does not start: InvalidImageName: "),
        (("upload", str(file), "pvc://reviews/closed/a"), "closed/a: permission denied for user 65532"),
        (("upload", str(large), "pvc://reviews/", "--template", str(small)), "claim reviews: the volume is full at large: "),
    ]
    try:
        with ThreadPoolExecutor(4) as pool:
            told = [pool.submit(volume.lmj, *arguments, code=1) for arguments, _ in cases]
    finally:
        shutil.rmtree(disk)
    for (_, words), done in zip(cases, told, strict=True):
        last = done.result()[1].splitlines()[-1]
        assert words in last
        assert last.startswith("error: ")
    assert volume.pods() == []


def test_the_pod_meets_the_restricted_level(volume: Volume) -> None:
    volume.target.kubectl("label", "namespace", volume.namespace, "pod-security.kubernetes.io/enforce=restricted")
    try:
        pod = json.dumps(build(Wanted("reviews", volume.namespace, BASE), "restricted", "me")).encode()
        volume.target.kubectl("apply", "--dry-run=server", "-f", "-", stdin=pod)
    finally:
        volume.target.kubectl("label", "namespace", volume.namespace, "pod-security.kubernetes.io/enforce-")
