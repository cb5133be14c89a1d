"""The quickstart inside the real trainer image, confined as a pod is: not root, read-only root, no capability, no network."""

import json
import os
from pathlib import Path

from cluster.errors import ClusterError

from images.confined import OPTIONS
from images.docker import Docker, say

RUN_SECONDS = 1800
ENOUGH = 0.90
"""Test accuracy that the README promises."""


def quickstart(docker: Docker, image: str) -> float:
    """Test accuracy of the model that the image trains. Raises ClusterError when the run fails or learns too little."""
    say(f"quickstart in {image}")
    volume = docker("volume", "create").strip()
    name = f"lmj-quickstart-{os.getpid()}"
    try:
        mounts = ["--volume", f"{volume}:/output"]
        told = docker(
            "run",
            "--name",
            name,
            *OPTIONS,
            *mounts,
            image,
            "lmj",
            "run",
            "/opt/lmj/examples/quickstart.yaml",
            "--set",
            "output.path=/output/runs/quickstart",
            seconds=RUN_SECONDS,
        )
        say(told.strip().splitlines()[-1])
        path = Path("/output/runs/quickstart")
        found = docker("run", *OPTIONS, *mounts, image, "cat", path / "evaluation.json")
        accuracy = float(next(each["accuracy"] for each in reversed(json.loads(found)) if each["split"] == "test"))
        said = docker("run", *OPTIONS, *mounts, image, "lmj", "predict", path / "model", "The soup was dreadful.", seconds=300)
        if "negative" not in said:
            raise ClusterError(f"lmj predict does not find 'The soup was dreadful.' negative: {said.strip()}")
    finally:
        docker("rm", "--force", name)  # still there when this was interrupted
        docker("volume", "rm", volume)
    if accuracy < ENOUGH:
        raise ClusterError(f"test accuracy {accuracy:.4f} in {image}; the README promises {ENOUGH}")
    return accuracy
