"""The agent as the first process of a container, to which the kernel gives no signal that it does not listen to."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="process namespaces are made by root on Linux"),
]


def test_it_ends_when_it_is_told_to_while_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text("import time\nprint('imports', flush=True)\ntime.sleep(600)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "lmj_trainer", "agent"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}) as outside:
        try:
            assert outside.stdout is not None
            assert outside.stdout.readline() == b"imports\n"
            (child,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
            os.kill(int(child), signal.SIGTERM)
            assert outside.wait(30) == 128 + signal.SIGTERM
        finally:
            outside.kill()
