"""The cluster's programs, built by a Go that is not one: what is built, in which order, and who waits."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Unavailable, binaries
from cluster.__main__ import main
from cluster.binaries import PROGRAMS, Binaries, ensure_binaries
from helm_chart import helm_program

CHECKOUT = Path(__file__).parents[3]
FAKE = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
out=$2; shift 2
for package; do
    program=${package##*/}
    echo "$program" >>"$GO_LOG"
    printf '#!/bin/sh\\necho "this is %s"\\n' "$program" >"$out$program"
    chmod +x "$out$program"
done
"""


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands where Go is, on a machine that has no program of the cluster; returns the log of what it was asked to build."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "go").write_text(FAKE)
    (folder / "go").chmod(0o755)
    log = tmp_path / "go.log"
    monkeypatch.setenv("GO_LOG", str(log))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return log


def test_the_chart_s_tests_build_helm_and_nothing_else(go: Path, tmp_path: Path) -> None:
    for _ in range(2):
        program = helm_program(tmp_path / "cache")
    assert subprocess.run([program], capture_output=True, check=True).stdout == b"this is helm\n"
    assert go.read_text().split() == ["helm"]


def test_helm_on_path_is_the_one(go: Path, tmp_path: Path) -> None:
    theirs = go.with_name("bin") / "helm"
    theirs.touch(0o755)
    assert helm_program(tmp_path / "cache2") == theirs
    assert not go.exists()


def test_helm_is_built_first_of_all(go: Path, tmp_path: Path) -> None:
    made = ensure_binaries(tmp_path)
    built = go.read_text().split()
    assert built[0] == "helm"
    assert sorted(built) == sorted(set(PROGRAMS) - {"kwok", "versitygw"})
    assert {made.path(program).is_file() for program in PROGRAMS} == {True}


def test_the_command_builds_what_is_named(go: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "kubectl", "--cache", str(tmp_path)]) == 0
    assert "kubectl" in go.read_text().split()
    assert "helm" not in go.read_text().split()
    for words in (["build", "helmet"], ["up", "helm"]):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--cache", str(tmp_path), "--run", str(tmp_path)])
        assert ended.value.code == 2
    assert "helmet: build takes names of programs" in capsys.readouterr().err


def test_without_go_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="Go is not on PATH"):
        Binaries(tmp_path).path("helm")
    assert main(["build", "helm", "--cache", str(tmp_path)]) == 3


def test_who_comes_second_says_that_it_waits(go: Path, tmp_path: Path) -> None:
    """On a fresh machine ``make test`` builds all in the background, and the unit tests want helm."""
    cache = tmp_path / "cache"
    cache.mkdir()
    second = [sys.executable, "-m", "cluster", "build", "helm", "--cache", str(cache)]
    with (cache / "helm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = subprocess.Popen(second, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT / "tests")
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == "cluster: waiting for who builds helm already\n"
        assert not go.exists()
    _, said = waiting.communicate(timeout=30)
    assert waiting.returncode == 0, said
    assert binaries.MODULES[0].folder.is_dir()


def test_integration_tests_wait_for_helm_alone() -> None:
    plan = subprocess.run(["make", "--dry-run", "test"], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    lines = plan.splitlines()
    (everything,) = (n for n, line in enumerate(lines) if line.rstrip().endswith("-m cluster build >/dev/null 2>&1 </dev/null &"))
    (helm,) = (n for n, line in enumerate(lines) if "-m cluster build helm" in line)
    (integration,) = (n for n, line in enumerate(lines) if "'integration and not e2e" in line)
    assert everything < helm < integration
