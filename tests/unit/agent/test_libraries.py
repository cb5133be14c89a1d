"""What is imported before a worker is forked."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmj_trainer.agent.environment import script_environment, worker_environment
from lmj_trainer.worker import libraries, main

LOOK = """
import gc, json, os, sys
from lmj_trainer import linux
from lmj_trainer.worker import libraries
before = sorted(os.listdir("/proc/self/fd"))
libraries.load(lora=True)
frozen = gc.get_freeze_count()
import torch
print(json.dumps({
    "threads": linux.thread_count(),
    "files": sorted(os.listdir("/proc/self/fd")) == before,
    "cuda": torch.cuda.is_initialized(),
    "collects": gc.isenabled(),
    "frozen": frozen > 100_000,
    "missing": [name for name in libraries.MODULES if name not in sys.modules],
}))
"""


def test_all_that_a_worker_imports_is_listed() -> None:
    tree = ast.parse(Path(main.__file__).read_text())
    late = {
        node.module
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and node.module is not None
    }
    assert late
    assert late <= set(libraries.MODULES), "worker.libraries.MODULES lacks what worker.main imports late"


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are not forked")
@pytest.mark.parametrize("threads", [1, 2])
def test_loading_leaves_a_process_that_can_be_forked(threads: int) -> None:
    # Of an environment with pandas or scikit-learn, transformers imports Arrow, whose allocator starts a thread if it may.
    more = "import importlib, os; from lmj_trainer.worker import libraries; libraries._load = (lambda load: lambda **words: ("
    more += "load(**words), importlib.import_module('pyarrow')))(libraries._load)\n"
    environment = worker_environment(os.environ, threads, "lo")
    done = subprocess.run(
        [sys.executable, "-c", more + LOOK], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    expected = {"threads": 1, "files": True, "cuda": False, "collects": True, "frozen": True, "missing": []}
    assert json.loads(done.stdout) == expected


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are not forked")
@pytest.mark.parametrize("variables", [{}, {"OPENBLAS_NUM_THREADS": "2", "JE_ARROW_MALLOC_CONF": "background_thread:true"}])
def test_loading_for_scripts_does_too_and_leaves_the_variables_as_they_are(variables: dict[str, str]) -> None:
    look = LOOK.replace("libraries.load(lora=True)", "libraries.load_for_scripts()").replace("MODULES", "SCRIPT_MODULES")
    look += "print(json.dumps({name: os.environ.get(name) for name in libraries.WITHOUT_THREADS}))"
    base = {name: value for name, value in os.environ.items() if name not in libraries.WITHOUT_THREADS}
    environment = script_environment(base | variables, "lo")
    done = subprocess.run([sys.executable, "-c", look], env=environment, capture_output=True, text=True, timeout=120, check=True)
    found, after = map(json.loads, done.stdout.splitlines())
    assert found == {"threads": 1, "files": True, "cuda": False, "collects": True, "frozen": True, "missing": []}
    assert after == dict.fromkeys(libraries.WITHOUT_THREADS) | variables


def test_a_script_has_the_environment_that_its_user_gave() -> None:
    assert script_environment({"A": "1"}, None) == {"A": "1", "PYTHONUNBUFFERED": "1"}
    given = script_environment({"PYTHONUNBUFFERED": "", "GLOO_SOCKET_IFNAME": "ib0"}, "eth0")
    assert given == {"PYTHONUNBUFFERED": "", "GLOO_SOCKET_IFNAME": "ib0", "LMJ_INTERFACE": "eth0"}
