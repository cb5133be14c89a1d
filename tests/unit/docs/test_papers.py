"""README, the documentation and the decisions: short where they are to be short, and every link leads somewhere."""

import re
from functools import cache
from pathlib import Path

from lmj_api.explain import paths

CHECKOUT = Path(__file__).resolve().parents[3]
ROOT = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", "charts/lmj/README.md")
PAPERS = sorted([*(CHECKOUT / "docs").rglob("*.md"), *(CHECKOUT / name for name in ROOT)])
OURS = [
    CHECKOUT / "README.md",
    CHECKOUT / "ARCHITECTURE.md",
    *sorted((CHECKOUT / "docs" / "decisions").glob("*.md")),
    *(
        CHECKOUT / "docs" / f"{name}.md"
        for name in (
            "index",
            "concepts",
            "tutorial",
            "troubleshooting",
            "compared",
            "benchmarks",
            "migration",
            "replicas",
            "metrics",
            "failures",
            "kind",
            "aks",
        )
    ),
]
DECISIONS = sorted((CHECKOUT / "docs" / "decisions").glob("0*.md"))
WIDEST = 120
PARTS = "checkpoint|dataset|migration|model|output|pipeline|placement|recovery|storage|training"
FIELD = re.compile(rf"`(?:spec\.)?((?:{PARTS})\.[a-zA-Z]+(?:\.[a-zA-Z]+)*)(?=[`:])")
FENCE = re.compile(r"^[ ]*```.*?^[ ]*```", re.DOTALL | re.MULTILINE)


def named(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


@cache
def prose(paper: Path) -> str:
    """Without its blocks of code."""
    return FENCE.sub("", paper.read_text())


@cache
def anchors(paper: Path) -> set[str]:
    """Of its headings, as GitHub and mkdocs make them of these."""
    titles = re.findall(r"^#+ (.*)$", prose(paper), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len((CHECKOUT / "README.md").read_text().split()) <= 900


def test_links_lead_somewhere() -> None:
    for paper in PAPERS:
        for target, anchor in re.findall(r"\]\(([^()\s#]*)(?:#([^()\s]*))?\)", prose(paper)):
            if "://" in target:
                continue
            file = (paper.parent / target).resolve() if target else paper
            assert file.exists(), f"{named(paper)}: {target}"
            if anchor:
                assert anchor in anchors(file), f"{named(paper)}: {target}#{anchor}"


def test_lines_are_not_wide() -> None:
    for paper in OURS:
        wide = [line for line in prose(paper).splitlines() if len(line) > WIDEST and not line.startswith(("|", "#", "!["))]
        assert not wide, named(paper)


def test_decisions_are_numbered_and_dated_and_listed() -> None:
    lists = {
        name: re.split(r"\n(?=[-|])", (CHECKOUT / name).read_text()) for name in ("ARCHITECTURE.md", "docs/decisions/index.md")
    }
    for number, decision in enumerate(DECISIONS, 1):
        text = decision.read_text()
        title = re.match(rf"# {number}\. (.+)\n\nDate: (\d{{4}}-\d\d-\d\d)\n", text)
        assert decision.name.startswith(f"{number:04}-"), decision.name
        assert title is not None, decision.name
        sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert sections == ["Context", "Decision", "Reasons and consequences"], decision.name
        for paper, parts in lists.items():
            (line,) = [part for part in parts if f"/{decision.name})" in part.replace("(", "/")]
            assert title[1] in " ".join(line.split()), (paper, decision.name)


def test_fields_that_are_named_exist() -> None:
    known = set(paths())
    for paper in PAPERS:
        if paper.name not in ("CHANGELOG.md", "fields.md"):
            fields = {name for name in FIELD.findall(prose(paper)) if not name.endswith((".json", ".safetensors"))}
            assert fields <= known, named(paper)
