"""``tools/crd.py``: writes the CRD, and tells when it is stale."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

TOOL = Path(__file__).parents[3] / "tools" / "crd.py"


def crd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_what_it_writes_is_fresh_until_it_is_changed(tmp_path: Path) -> None:
    file = tmp_path / "crd.yaml"
    missing = crd("--check", str(file))
    assert missing.returncode == 1
    assert missing.stderr == f"{file} is stale: run `make crd` and commit it\n"
    assert crd(str(file)).returncode == 0
    assert crd("--check", str(file)).returncode == 0
    file.write_text(file.read_text() + "# touched by hand\n")
    assert crd("--check", str(file)).returncode == 1
