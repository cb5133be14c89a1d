"""Helm: the one on PATH, else the test cluster's, which is built if it is not there."""

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import Unavailable
from cluster.binaries import DEFAULT_CACHE, Binaries

CHECKOUT = Path(__file__).resolve().parents[3]
CHART = CHECKOUT / "charts" / "lmj"
SECONDS = 60

Object = dict[str, Any]


@functools.cache
def helm_program(cache: Path = DEFAULT_CACHE) -> Path:
    """Where it is. Raises Unavailable where there is none and none can be built."""
    on_path = shutil.which("helm")
    return Path(on_path) if on_path else Binaries(cache).path("helm")


def helm(*words: str, values: Mapping[str, Any] | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run it with ``values`` on top of the chart's. Skips the test where there is no helm."""
    try:
        program = helm_program()
    except Unavailable as reason:
        pytest.skip(f"no helm on PATH, and none can be built: {reason}")
    command = [program, *words, *(["--values", "-"] if values is not None else [])]
    done = subprocess.run(
        command, input=yaml.safe_dump(dict(values or {})), text=True, capture_output=True, timeout=SECONDS, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done


class GoLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Reads ``1e-08`` as a number, as Kubernetes does."""


GoLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def render(values: Mapping[str, Any] | None = None, release: str = "lmj", namespace: str = "lmj-system") -> list[Object]:
    """The objects that the chart makes."""
    text = _rendered(json.dumps(values or {}), release, namespace)
    return [each for each in yaml.load_all(text, GoLoader) if each]  # a safe loader


@functools.cache
def _rendered(values: str, release: str, namespace: str) -> str:
    options = ("--namespace", namespace, "--kube-version", "1.34.0")
    return helm("template", release, str(CHART), *options, values=json.loads(values)).stdout


def one(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The only object of ``kind`` (and ``name``)."""
    found = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    assert len(found) == 1, [(each["kind"], each["metadata"]["name"]) for each in objects]
    return found[0]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """All objects of ``kind``."""
    return [each for each in objects if each["kind"] == kind]
