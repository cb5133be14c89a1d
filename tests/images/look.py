"""What an image must be, whatever it was built on: looked at right after it was built."""

import json

from cluster.errors import ClusterError

from images.confined import OPTIONS
from images.docker import Docker

OPERATOR_BYTES = 250_000_000
RUN_SECONDS = 120


def look(docker: Docker, image: str, tag: str, base: str) -> None:
    """Raises ClusterError with what is wrong."""
    config = json.loads(docker("image", "inspect", "--format", "{{json .Config}}", tag))
    if config["User"].split(":")[0] in ("", "0", "root"):
        raise ClusterError(f"{tag} runs as root (USER {config['User']!r})")
    if image == "operator":
        _run(docker, tag, "--version")
        _run(docker, tag, "operator", "--help")
        _python(docker, tag, "import importlib.util as u; assert u.find_spec('torch') is None, 'torch is in the operator image'")
        over = docker.size(tag) - docker.size(base)
        if over > OPERATOR_BYTES:
            raise ClusterError(f"{tag} is {over / 1e6:.0f} MB over its base; {OPERATOR_BYTES / 1e6:.0f} at most")
    else:
        _run(docker, tag, "python", "-m", "lmj_trainer", "agent", "--help")
        _run(docker, tag, "sh", "-c", "test -r /opt/lmj/examples/quickstart.yaml && test -r /opt/lmj/examples/data/reviews.csv")
        _run(docker, tag, "sh", "-c", "! touch /opt/lmj/examples/x 2>/dev/null")


def _run(docker: Docker, tag: str, *words: str) -> None:
    docker("run", *OPTIONS, tag, *words, seconds=RUN_SECONDS)


def _python(docker: Docker, tag: str, code: str) -> None:
    docker("run", *OPTIONS, "--entrypoint", "python", tag, "-c", code, seconds=RUN_SECONDS)
