"""The guides name only what there is."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from helm_chart import CHART, CHECKOUT, Object
from pydantic import TypeAdapter

from lmj_api.explain import paths
from lmj_api.load import load_job
from lmj_api.spec import JobSpec
from lmj_operator.cli.main import app

GUIDES = sorted([*(CHECKOUT / "docs").glob("*.md"), CHECKOUT / "README.md", CHART / "README.md"])
HERE = CHECKOUT / "docs" / "tutorial.md"
"""Its job is one of a machine; all others are of a cluster."""
VERSION = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]


def named(guide: Path) -> str:
    return str(guide.relative_to(CHECKOUT))


def documents(guide: Path) -> list[Object]:
    """Every YAML document in it: of its yaml blocks, and those that a shell block feeds to a command."""
    text = guide.read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) + re.findall(r"<<'?EOF'?\n(.*?)\nEOF\n", text, re.DOTALL)
    return [each for block in blocks for each in yaml.safe_load_all(block)]


def test_values_exist() -> None:
    values, fields = yaml.safe_load((CHART / "values.yaml").read_text()), set(paths())
    for guide in GUIDES:
        for path in re.findall(r"--set ([a-z][a-zA-Z.]*)=", guide.read_text()):
            if path.removeprefix("spec.") in fields:
                continue
            here = values
            for part in path.split("."):
                assert part in here, f"{named(guide)}: {path}"
                here = here[part]


@pytest.mark.parametrize("guide", GUIDES, ids=named)
def test_jobs_are_right(guide: Path, tmp_path: Path) -> None:
    parts = {field.alias or name: field.annotation for name, field in JobSpec.model_fields.items()}
    for document in documents(guide):
        if document.keys() <= parts.keys():
            for name, part in document.items():
                TypeAdapter(parts[name]).validate_python(part)
            continue
        assert {"apiVersion", "kind"} <= document.keys()
        if document["kind"] == "LiveMigrationJob":
            job = load_job(document, base=tmp_path, here=False)
            # A script's volumes may be those of its template.
            assert job.spec.strategy.stateless or (job.spec.storage.output is None) == (guide == HERE)


def test_classes_that_jobs_name_are_made() -> None:
    for guide in ("kind.md", "aks.md"):
        text = (CHECKOUT / "docs" / guide).read_text()
        made = {each["metadata"]["name"] for each in documents(CHECKOUT / "docs" / guide) if each["kind"] == "StorageClass"}
        assert set(re.findall(r'"?storageClassName"?: "?([\w-]+)', text)) == made


def test_images_have_the_projects_version_and_files_are_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    for guide in GUIDES:
        text = guide.read_text()
        assert set(re.findall(r"lmj-(?:operator|trainer):([\w.]+)", text)) <= {VERSION}, named(guide)
        for name in re.findall(r"(?:-f|--file) ((?:examples/|Dockerfile)[\w./]+)", text):
            assert (CHECKOUT / name).is_file(), f"{named(guide)}: {name}"
        assert set(re.findall(r"^make ([\w-]+)", text, re.MULTILINE)) <= targets, named(guide)


def test_commands_are_there() -> None:
    known = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    for guide in GUIDES:
        for block in re.findall(r"```sh\n(.*?)```", guide.read_text(), re.DOTALL):
            for name in re.findall(r"^(?:\.venv/bin/)?lmj (\S+)", block, re.MULTILINE):
                assert name in known, f"{named(guide)}: {name}"


def test_what_installs_is_locked_in_one_place() -> None:
    locked = (CHECKOUT / "tools" / "installers.txt").read_text()
    assert set(re.findall(r"^([a-z][\w-]*)==", locked, re.MULTILINE)) >= {"hatchling", "uv"}
    wanted = r"[a-z][\w-]*==\S+( ; [^\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+"
    assert re.fullmatch(rf"({wanted}\n)+", re.sub(r"^\s*#.*\n", "", locked, flags=re.MULTILINE))
    for file in ("Makefile", "Dockerfile.operator", "Dockerfile.trainer"):
        assert "installers.txt" in (CHECKOUT / file).read_text()
