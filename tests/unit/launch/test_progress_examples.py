"""The examples and the table of names in docs/script-progress.md are right."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from lmj_api.protocol import Progress
from lmj_trainer.launch.progress import NAMES
from lmj_trainer.launch.progress_file import ProgressFile
from lmj_trainer.launch.progress_server import ProgressServer

PAGE = Path(__file__).parents[3] / "docs" / "script-progress.md"
BLOCKS = [
    (language, text)
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    if language != "yaml"
]
STEPS = [3, 10, 10]
"""The last one that each example reports."""


@pytest.mark.integration
@pytest.mark.parametrize(("example", "in_job"), [(0, True), (1, True), (2, True), (1, False), (2, False)])
async def test_an_example_reports(example: int, in_job: bool, tmp_path: Path) -> None:
    language, text = BLOCKS[example]
    command = {"bash": ["bash", "-ec", text], "python": [sys.executable, "-c", text]}[language]
    told: list[Progress] = []
    warned: list[str] = []
    async with ProgressServer(told.append) as server, ProgressFile(tmp_path / "progress.jsonl", server.take_lines, warned.append):
        environment = server.environment() if in_job else {}
        process = await asyncio.create_subprocess_exec(*command, env=os.environ | environment, cwd=tmp_path)
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    assert warned == []
    if in_job or "progress.jsonl" in text:
        at = told[-1]
        assert (at.step, at.steps, at.loss) == (STEPS[example], 100 if example == 0 else 10, 0.5 if example == 0 else 0.1)
    else:
        assert told == []


def test_there_are_no_other_examples() -> None:
    assert len(BLOCKS) == len(STEPS)


def test_the_table_of_names_is_right() -> None:
    rows = re.findall(r"^\| [^|]+ \| (`[^|]+) \|$", PAGE.read_text().partition("## What a report may say")[2], re.MULTILINE)
    assert [tuple(re.findall(r"`([^`]+)`", row)) for row in rows] == list(NAMES.values())
