"""Builds an image from the checkout's Dockerfile, on a base that is pulled, or made with debootstrap where no registry answers."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from cluster.errors import ClusterError, Unavailable
from cluster.process import run

from images.docker import Docker, say
from images.look import look

CHECKOUT = Path(__file__).resolve().parents[2]
IMAGES = ("operator", "trainer")
PULLED_BASE = "python:3.12-slim"
MADE_BASE = "lmj-base:bookworm"
SUITE = "bookworm"
PULL_SECONDS = 120
BUILD_SECONDS = 3600
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def version() -> str:
    """The project's version, which is the images' tag."""
    return str(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"])


def tag(image: str) -> str:
    """``lmj-operator:0.1.0``, as the chart's values name it."""
    return f"lmj-{image}:{version()}"


def build(docker: Docker, image: str, base: str | None = None, torch_index: str = "") -> str:
    """Build ``image``; returns its tag and prints its size. Raises ClusterError with the builder's last lines."""
    base = base or ensure_base(docker)
    arguments = [f"BASE_IMAGE={base}"]
    if image == "trainer" and torch_index:
        arguments.append(f"TORCH_INDEX={torch_index}")
    command = [
        *docker.command(),
        "build",
        "--network",
        "host",
        "--file",
        str(CHECKOUT / f"Dockerfile.{image}"),
        "--tag",
        tag(image),
    ]
    for argument in arguments:
        command += ["--build-arg", argument]
    say(f"building {tag(image)} on {base}")
    started = time.monotonic()
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    try:
        done = subprocess.run(
            [*command, str(CHECKOUT)], env=environment, stdout=sys.stdout, stderr=sys.stderr, timeout=BUILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{tag(image)}: not built within {BUILD_SECONDS} s") from error
    if done.returncode:
        raise ClusterError(f"{tag(image)}: docker build ended with {done.returncode}; its last lines say why")
    whole, below = docker.size(tag(image)) / 1e6, docker.size(base) / 1e6
    look(docker, image, tag(image), base)
    say(f"{tag(image)}: {whole:.0f} MB, {whole - below:.0f} MB of it over the base; {time.monotonic() - started:.0f} s")
    return tag(image)


def ensure_base(docker: Docker) -> str:
    """The base image: ``BASE_IMAGE`` of the environment, else one that is here or can be pulled, else one made here."""
    wanted = os.environ.get("BASE_IMAGE")
    if wanted:
        return wanted
    for known in (PULLED_BASE, MADE_BASE):
        if docker.has(known):
            return known
    try:
        docker("pull", "--quiet", PULLED_BASE, seconds=PULL_SECONDS)
    except ClusterError as error:
        say(f"{PULLED_BASE} cannot be pulled ({str(error).splitlines()[-1][-160:]})")
        return make_base(docker)
    return PULLED_BASE


def make_base(docker: Docker) -> str:
    """A small Debian with Python, from Debian's archive. Raises Unavailable where debootstrap cannot run."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise Unavailable(
            "no registry answers and no base can be made (that takes root and debootstrap); name one: BASE_IMAGE=..."
        )
    say(f"making {MADE_BASE} with debootstrap")
    with tempfile.TemporaryDirectory(prefix="lmj-base-") as scratch:
        root = Path(scratch) / "root"
        packages = "--include=python3,python3-venv,ca-certificates"
        try:
            run(
                ["debootstrap", "--variant=minbase", packages, SUITE, root],
                seconds=900,
                env={"DEBIAN_FRONTEND": "noninteractive"},
            )
        except ClusterError as error:
            raise Unavailable(f"debootstrap failed: {error}") from error
        # What the package index is reached through here must be trusted in the build too.
        if CERTIFICATES.is_file():
            shutil.copyfile(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
        for useless in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
            shutil.rmtree(root / useless, ignore_errors=True)
        (root / "var/lib/apt/lists/partial").mkdir(parents=True)
        (root / "var/cache/apt/archives/partial").mkdir(parents=True)
        archive = Path(scratch) / "root.tar"
        run(["tar", "--numeric-owner", "-C", root, "-cf", archive, "."], seconds=300)
        docker("import", archive, MADE_BASE, seconds=300)
    return MADE_BASE
