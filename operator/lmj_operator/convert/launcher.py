"""Launchers of PyTorch: which of their options have a field here, and where the script begins."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

_PYTHON: Final = re.compile(r"python(3(\.[0-9]+)?)?")
_RUN_MODULES: Final = ("torch.distributed.run", "torch.distributed.elastic.launch")
_LAUNCH_MODULE: Final = "torch.distributed.launch"
_ACCELERATE_MODULES: Final = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")

_FLAGS: Final = frozenset(
    (
        "standalone",
        "module",
        "no-python",
        "run-path",
        "use-env",
        "virtual-local-rank",
        "multi-gpu",
        "cpu",
        "use-cpu",
        "tpu",
        "use-xpu",
        "use-fsdp",
        "use-deepspeed",
        "use-megatron-lm",
        "use-parallelism-config",
        "same-network",
        "quiet",
        "debug",
        "main-training-function-cpu",
        "enable-cpu-affinity",
        "ipex",
        "dynamo-use-dynamic",
        "dynamo-use-fullgraph",
        "use-mps-device",
        "fp16",
        "tpu-use-cluster",
        "tpu-use-sudo",
    )
)
"""Options without a value."""
_EXPECTED: Final = frozenset(
    (
        "node-rank",
        "rdzv-backend",
        "rdzv-endpoint",
        "rdzv-id",
        "rdzv-conf",
        "master-addr",
        "master-port",
        "local-addr",
        "standalone",
        "use-env",
        "machine-rank",
        "main-process-ip",
        "main-process-port",
        "multi-gpu",
        "same-network",
        "num-machines",
        "quiet",
    )
)
"""Options that say how processes find each other, which the operator does by itself."""
_TO_VARIABLES: Final = {
    "mixed-precision": "ACCELERATE_MIXED_PRECISION",
    "gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "cpu": "ACCELERATE_USE_CPU",
    "use-cpu": "ACCELERATE_USE_CPU",
}
"""Options of ``accelerate launch`` that it hands to the script as variables."""


@dataclass(frozen=True)
class Launch:
    """A command line without its launcher."""

    args: tuple[str, ...]
    """What ``command.args`` is: a Python file or ``-m`` and a module, with arguments, or a program."""
    rest: int
    """How many of the last words of the line are the script's own and were not looked at."""
    launcher: str | None = None
    """What starts the processes; None: each pod starts one."""
    processes: str | None = None
    """Of each pod, as it is written (``2``, ``auto``); None: not said."""
    total: str | None = None
    """Of all pods together, as ``accelerate`` counts."""
    nodes: str | None = None
    """Pods, as ``2`` or ``1:4``."""
    max_restarts: str | None = None
    threads: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    expected: tuple[str, ...] = ()
    """Options that are not needed here."""
    dropped: tuple[str, ...] = ()
    """Options that have no equivalent."""
    interpreter: str | None = None
    """The Python that it names by a path."""


def parse(words: Sequence[str]) -> Launch | None:
    """What the command ``words`` starts, and how; None: no Python script that it could be told of."""
    if not words:
        return None
    name, rest = PurePosixPath(words[0]).name, list(words[1:])
    interpreter = words[0] if _PYTHON.fullmatch(name) and "/" in words[0] else None
    if _PYTHON.fullmatch(name):
        while rest and rest[0] == "-u":
            rest.pop(0)
        if rest[:1] == ["-m"] and len(rest) > 1:
            module, after = rest[1], rest[2:]
            if module in _RUN_MODULES or module == _LAUNCH_MODULE:
                return _launched(f"python -m {module}", after, interpreter)
            if module in _ACCELERATE_MODULES:
                return _launched("accelerate launch", after[1:] if after[:1] == ["launch"] else after, interpreter)
            return Launch(("-m", module, *after), len(after), interpreter=interpreter)
        if rest and rest[0].endswith(".py"):
            return Launch(tuple(rest), len(rest) - 1, interpreter=interpreter)
        return None
    if name == "torchrun":
        return _launched("torchrun", rest, None)
    if name == "accelerate" and rest[:1] == ["launch"]:
        return _launched("accelerate launch", rest[1:], None)
    if name == "accelerate-launch":
        return _launched("accelerate launch", rest, None)
    if name.endswith(".py"):
        return Launch(tuple(words), len(rest))
    return None


def _launched(launcher: str, words: list[str], interpreter: str | None) -> Launch | None:
    """With the options of ``launcher`` taken off."""
    options: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        at += 1
        if word == "--":
            break
        key, equals, value = word.partition("=")
        key = {"-m": "module", "-r": "redirects", "-t": "tee"}.get(key) or key.lstrip("-").replace("_", "-")
        if not equals and key not in _FLAGS and at < len(words) and not words[at].startswith("--"):
            value = words[at]
            at += 1
        options[key] = value
    target = words[at:]
    if not target:
        return None
    if "module" in options:
        args = ("-m", *target)
    elif "no-python" in options or target[0].endswith(".py"):
        args = tuple(target)
    else:
        args = ("python", *target)
    known = {"module", "no-python", "nproc-per-node", "nnodes", "max-restarts", "num-processes", "num-cpu-threads-per-process"}
    variables = {_TO_VARIABLES[key]: value or "true" for key, value in options.items() if key in _TO_VARIABLES}
    told = [key for key in options if key not in known and key not in _TO_VARIABLES]
    return Launch(
        args,
        len(target) - 1,
        launcher,
        processes=options.get("nproc-per-node"),
        total=options.get("num-processes"),
        nodes=options.get("nnodes") or options.get("num-machines"),
        max_restarts=options.get("max-restarts"),
        threads=options.get("num-cpu-threads-per-process"),
        variables=variables,
        expected=tuple(key for key in told if key in _EXPECTED),
        dropped=tuple(f"--{key}" + (f" {options[key]}" if options[key] else "") for key in told if key not in _EXPECTED),
        interpreter=interpreter,
    )
