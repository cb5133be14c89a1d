"""A job's file as a person wrote it: whatever is wrong or ambiguous in it is one line with its place, and none of it is accepted in silence."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmj_operator.cli.errors import BAD_INPUT, CommandError
from lmj_operator.cli.load import read_job
from lmj_operator.cli.yaml_file import LARGEST, YamlProblem, parse

pytestmark = pytest.mark.integration

JOB = """\
apiVersion: lmj.dev/v1alpha1
kind: LiveMigrationJob
metadata: {name: job}
spec:
  model: {scratch: {}}
  dataset: {source: d.csv, text: [text], label: label}
  output: {path: out}
"""


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            JOB + "  training: {epochs: 1}\n  training: {epochs: 9}\n",
            "line 9, column 3: the key 'training' is here a second time (first in line 8); keep one of them",
        ),
        (
            JOB + "  training: {epochs: 1, seed: 2, epochs: 9}\n",
            "line 8, column 34: the key 'epochs' is here a second time (first in line 8); keep one of them",
        ),
        (JOB + "---\n" + JOB, "line 8: a second document begins here; one file holds one job: give each its own file"),
        (JOB + "  training:\n\tepochs: 1\n", "line 9, column 1: a tab; YAML is indented with spaces alone"),
        (JOB.encode() + b"# caf\xe9\n", "line 8, column 6: the byte 0xe9 is not UTF-8; save the file as UTF-8"),
        ("", "the file is empty; a job has apiVersion, kind, metadata and spec"),
        ("# nothing yet\n", "the file is empty; a job has apiVersion, kind, metadata and spec"),
        (JOB[: JOB.index("spec:") + 5], "spec: empty; it needs model, dataset, output"),
        (JOB + "  a: 2020-13-45\n", "not YAML: month must be in 1..12; put it in quotes if it is text"),
        ("[" * 5000, "nested too deep"),
        ("#" * (LARGEST + 1), "larger than 1 MiB: that is no job's file"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(content: str | bytes, line: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CommandError) as caught:
        read_job(file, [])
    assert caught.value.lines == (f"{file}: {line}",)
    assert caught.value.code == BAD_INPUT


def test_a_merged_mapping_may_be_added_to() -> None:
    text = b"a: &a {x: 1}\nb: &b\n  <<: *a\n  x: 2\nc: {<<: *b, x: 3}\n"
    assert parse(text) == {"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 3}}


def test_mappings_that_merge_each_other_again_and_again_are_refused() -> None:
    """Each line has nine times the keys of the one before: 600 bytes would be hundreds of millions."""
    lines = ["m0: &m0 {" + ", ".join(f"k{key}: 1" for key in range(9)) + "}"]
    lines += [f"m{level}: &m{level} {{<<: [{', '.join([f'*m{level - 1}'] * 9)}]}}" for level in range(1, 9)]
    with pytest.raises(YamlProblem, match=r"line 5, column 5: a mapping of more than 10,000 keys .* write out what it needs"):
        parse("\n".join(lines).encode())
    assert parse("\n".join(lines[:4]).encode())


def bomb(levels: int) -> str:
    """A template of a few hundred bytes whose parts name one another: each level has nine times the values of the one before."""
    lines = ["  template:", "    l0: &l0 [" + ", ".join(["x"] * 9) + "]"]
    lines += [f"    l{level}: &l{level} [" + ", ".join([f"*l{level - 1}"] * 9) + "]" for level in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (JOB + bomb(9), "spec.template: more than 10,000 values"),
        (JOB + "status:\n" + bomb(9), "the file, besides the spec: more than 40,000 values"),
        (JOB + "  template: &t {spec: *t}\n", "spec.template: nested deeper than 64 levels"),
    ],
    ids=["bomb", "bomb in what is not read", "a ring"],
)
def test_aliases_of_aliases_are_refused_at_once(content: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(content)
    assert len(content) < 1000
    begin = time.process_time()
    with pytest.raises(CommandError) as caught:
        read_job(file, ["training.epochs=1"])
    assert time.process_time() - begin < 1
    (line,) = caught.value.lines
    assert line.startswith(f"{file}: {said}")


def test_one_document_may_be_marked() -> None:
    assert parse(b"\xef\xbb\xbf---\na: 1\n...\n") == {"a": 1}


@given(st.binary(max_size=60) | st.text(alphabet="a:{}[]&*!|>-?'\"#%\n\t 0", max_size=60).map(str.encode))
def test_any_bytes_are_a_value_or_one_line(data: bytes) -> None:
    said = "a value"
    try:
        parse(data)
    except YamlProblem as problem:
        said = str(problem)
    assert len(said.splitlines()) == 1


def test_the_same_paths_wherever_the_command_stands(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "jobs", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "job.yaml").write_text(JOB)
    code = "import sys; from pathlib import Path; from lmj_operator.cli.load import read_job; s = read_job(Path(sys.argv[1]), []).spec"
    code += "; print(s.output.path, s.dataset.source)"
    for cwd, name in ((folder, "job.yaml"), (elsewhere, "../jobs/job.yaml"), (tmp_path, str(folder / "job.yaml"))):
        told = subprocess.run([sys.executable, "-c", code, name], cwd=cwd, capture_output=True, text=True, timeout=60, check=True)
        assert told.stdout.split() == [str(folder / "out"), str(folder / "d.csv")]
