"""A run in which a test skipped fails where that is asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parents[2]
FILES = {
    "gpu/test_cuda.py": "import pytest\n\ndef test_gpu():\n    pytest.skip('no GPU')\n",
    "cloud/test_metadata.py": "import pytest\n\ndef test_cloud():\n    pytest.skip('no cloud')\n",
    "unit/test_wanted.py": "import pytest\n\ndef test_pass():\n    pass\n\n@pytest.mark.xfail\ndef test_xfail():\n    assert False\n",
    "unit/test_late.py": "import pytest\n\ndef test_this():\n    pytest.skip('no such thing here')\n",
    "unit/test_whole.py": "import pytest\n\npytest.skip('not here', allow_module_level=True)\n",
}


def run(folder: Path, names: list[str], strict: str) -> subprocess.CompletedProcess[str]:
    tests = folder / "tests"
    for name in names:
        (tests / name).parent.mkdir(parents=True, exist_ok=True)
        (tests / name).write_text(FILES[name])
    (tests / "conftest.py").write_text("import skips\n\ndef pytest_configure(config):\n    skips.register(config)\n")
    plugins = [word for name in ("cacheprovider", "asyncio", "hypothesispytest") for word in ("-p", f"no:{name}")]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "--rootdir", str(folder), str(tests)],
        env=os.environ | {"LMJ_NO_SKIPS": strict, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_skips_are_failures_where_that_is_asked_for(tmp_path: Path) -> None:
    done = run(tmp_path, list(FILES), "1")
    assert done.returncode == 1, done.stdout + done.stderr
    named = [line.rpartition(" ")[2] for line in done.stdout.splitlines() if "LMJ_NO_SKIPS does not allow it" in line]
    assert sorted(named) == ["tests/unit/test_late.py::test_this", "tests/unit/test_whole.py"]
    assert run(tmp_path, list(FILES), "").returncode == 0


def test_a_gpu_may_be_missing(tmp_path: Path) -> None:
    done = run(tmp_path, ["gpu/test_cuda.py", "unit/test_wanted.py"], "1")
    assert done.returncode == 0, done.stdout + done.stderr
