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


@pytest.mark.parametrize("image", IMAGES)
def test_nothing_is_installed_that_is_not_locked(image: str) -> None:
    text = dockerfile(image)
    assert "uv export --quiet --locked" in text
    assert "--require-hashes" in text


def test_actions_are_those_that_were_looked_at() -> None:
    """A tag can be moved to other code, which would run with the project's rights; a commit cannot."""
    used = []
    for file in sorted((CHECKOUT / ".github" / "workflows").glob("*.yaml")):
        used += re.findall(r"uses: (.*)", file.read_text())
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_workflows_ask_for_little() -> None:
    for file in sorted((CHECKOUT / ".github" / "workflows").glob("*.yaml")):
        workflow = yaml.safe_load(file.read_text())
        assert workflow["permissions"] == {"contents": "read"}, file.name
        for name, job in workflow["jobs"].items():
            assert "permissions" not in job, name
            assert job["timeout-minutes"] <= 120
            for step in job["steps"]:
                if step.get("uses", "").startswith("actions/checkout"):
                    assert step["with"]["persist-credentials"] is False
