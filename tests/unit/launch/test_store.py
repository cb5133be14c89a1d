"""The store of a script's processes, as a program."""

import subprocess
import sys
from pathlib import Path

import pytest

from lmj_trainer.launch import store

pytestmark = pytest.mark.integration


def test_modules_of_the_working_directory_are_not_the_stores(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('not this one')")
    with subprocess.Popen(
        [sys.executable, store.PROGRAM, "127.0.0.1", "none"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as serving:
        _, said = serving.communicate(timeout=60)
    assert "not this one" not in said
    assert "invalid literal for int" in said  # it came as far as its arguments
