"""What the operator takes for granted of the images is in their Dockerfiles."""

import re

import pytest
import yaml
from helm_chart import CHART, CHECKOUT

from lmj_operator.backend.kubernetes import labels
from lmj_operator.backend.kubernetes.settings import Settings

IMAGES = ("operator", "trainer")


def dockerfile(image: str) -> str:
    return (CHECKOUT / f"Dockerfile.{image}").read_text()


def final_stage(image: str) -> str:
    return dockerfile(image).rpartition("\nFROM ")[2]


@pytest.mark.parametrize("image", IMAGES)
def test_images_run_as_the_user_that_pods_have(image: str) -> None:
    user = Settings().user
    assert re.findall(r"^USER (.*)$", final_stage(image), re.MULTILINE) == [f"{user}:{user}"]


def test_the_operators_pod_has_that_user_too() -> None:
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    assert set(re.findall(r"(?:runAsUser|runAsGroup|fsGroup): (\d+)", helpers)) == {str(Settings().user)}


def test_the_trainers_folders_are_where_pods_expect_them() -> None:
    assert f"COPY examples {labels.EXAMPLES}\n" in dockerfile("trainer")
    assert f"WORKDIR {labels.OUTPUT}\n" in final_stage("trainer")


@pytest.mark.parametrize("image", IMAGES)
def test_only_what_is_copied_is_sent_to_the_builder(image: str) -> None:
    ignore = (CHECKOUT / ".dockerignore").read_text().splitlines()
    assert "*" in ignore
    sent = [line[1:] for line in ignore if line.startswith("!")]
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile(image), re.MULTILINE) for word in line.split()]
    for source in copied:
        assert any(path == source or path.startswith(f"{source}/") for path in sent), source


@pytest.mark.parametrize("image", IMAGES)
def test_the_classic_builder_takes_it(image: str) -> None:
    text = dockerfile(image)
    assert text.index("ARG BASE_IMAGE") < text.index("FROM")
    assert not re.search(r"--mount=|--link|<<|^# syntax", text, re.MULTILINE)


@pytest.mark.parametrize("file", ["Dockerfile.operator", "Dockerfile.trainer", "Makefile"])
def test_nothing_is_installed_that_is_not_locked(file: str) -> None:
    text = (CHECKOUT / file).read_text()
    assert file == "Makefile" or "uv export --quiet --locked" in text
    installs = [line for line in re.findall(r"(?:pip install|\$install) .*", text) if not line.endswith('";' + " \\")]
    assert installs
    # Builds of another index have other hashes.
    known = ["--require-hashes", "/tmp/wheel/*.whl", '--index "${TORCH_INDEX}" -c /tmp/constraints.txt']
    assert [line for line in installs if not any(how in line for how in known)] == []


@pytest.mark.parametrize("image", IMAGES)
def test_the_base_is_the_image_that_was_looked_at(image: str) -> None:
    """A tag can be moved to another one; and a bot has to renew what is pinned, or nobody does."""
    (base,) = re.findall(r"^ARG BASE_IMAGE=(.*)$", dockerfile(image), re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64}", base)
    assert base in dockerfile("operator"), "both have the same"


def test_actions_are_those_that_were_looked_at() -> None:
    """A tag can be moved to other code, which would run with the project's rights; a commit cannot."""
    used = []
    for file in sorted((CHECKOUT / ".github" / "workflows").glob("*.yaml")):
        used += re.findall(r"uses: (.*)", file.read_text())
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_a_bot_renews_what_is_pinned() -> None:
    told = (CHECKOUT / ".github" / "renovate.json5").read_text()
    (managers,) = re.findall(r"enabledManagers: \[(.*)\]", told)
    assert set(re.findall(r'"(.*?)"', managers)) == {"dockerfile", "github-actions", "gomod", "pip_requirements"}
    assert r"/^tools/installers\\.txt$/" in told


SIGNED = {("release.yaml", "images"), ("release.yaml", "chart")}
"""Jobs that sign what they publish, by the identity of their workflow."""


def test_what_is_released_is_signed_by_its_digest() -> None:
    jobs = yaml.safe_load((CHECKOUT / ".github" / "workflows" / "release.yaml").read_text())["jobs"]
    images, chart = jobs["images"]["steps"], jobs["chart"]["steps"]
    (built,) = [step for step in images if step.get("id") == "build"]
    assert (built["with"]["provenance"], built["with"]["sbom"]) == (True, True)
    assert images[-1]["env"]["IMAGE"].endswith("@${{ steps.build.outputs.digest }}")
    assert images[-1]["run"] == 'cosign sign --yes "$IMAGE"'
    assert chart[-1]["run"].strip().endswith('cosign sign --yes "$REGISTRY/charts/lmj@$digest"')
    assert "set -o pipefail" in chart[-1]["run"]


def test_all_that_is_locked_is_looked_up_for_vulnerabilities() -> None:
    workflow = (CHECKOUT / ".github" / "workflows" / "vulnerabilities.yaml").read_text()
    modules = sorted(str(file.relative_to(CHECKOUT)) for file in (CHECKOUT / "tests" / "cluster" / "go").glob("*/go.mod"))
    assert modules
    locks = ["uv.lock", "requirements.txt:tools/installers.txt", *modules]
    assert re.findall(r"--lockfile (\S+)", workflow) == locks
    assert re.search(r"osv-scanner@v\d+\.\d+\.\d+ ", workflow)
    assert "schedule:" in workflow


def test_workflows_ask_for_little() -> None:
    for file in sorted((CHECKOUT / ".github" / "workflows").glob("*.yaml")):
        workflow = yaml.safe_load(file.read_text())
        assert workflow["permissions"] == {"contents": "read"}, file.name
        for name, job in workflow["jobs"].items():
            signs = {"contents": "read", "id-token": "write"} if (file.name, name) in SIGNED else None
            assert job.get("permissions") == signs, name
            assert job["timeout-minutes"] <= 120
            for step in job["steps"]:
                if step.get("uses", "").startswith("actions/checkout"):
                    assert step["with"]["persist-credentials"] is False
