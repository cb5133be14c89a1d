"""A hook of mkdocs: texts that lie beside ``docs/`` are pages too, and links between all of them lead to pages.

In the repository ``docs/migration.md`` links to ``../README.md``, and on the site the same link leads to the page that stands for it. A
link to a file that the site does not have (an example, a folder of the source) keeps its text and loses its target.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "charts/lmj/README.md": "chart.md",
}
"""Path in the repository, and on the site."""
STANDS_FOR = PAGES | {"README.md": "index.md"}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^()\s#]+)(#[^()\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the texts beside ``docs/``."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead its links to pages."""
    here = page.file.src_uri
    source = next((source for source, name in PAGES.items() if name == here), f"docs/{here}")

    def led(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        uri = STANDS_FOR.get(path) or path.removeprefix("docs/")
        if files.get_file_from_path(uri) is not None:
            return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(here) or '.')}{anchor if path != 'README.md' else ''})"
        if not (ROOT / path).exists():
            return match[0]  # mkdocs says so
        return text

    parts = FENCE.split(markdown)
    return "".join(part if place % 2 else LINK.sub(led, part) for place, part in enumerate(parts))
