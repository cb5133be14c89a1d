"""Files of rows of any content: they are read, or refused with a line."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from lmj_trainer.data.files import SUFFIXES, read_rows
from lmj_trainer.data.look import first_rows
from lmj_trainer.errors import UserError

ROWS = [{"text": f"this is {number}, or so", "label": number % 2} for number in range(6)]
SPLICE = st.tuples(
    st.floats(0, 1), st.integers(0, 64), st.binary(max_size=64) | st.sampled_from([b'"', b"{", b"[", b",", b"\n", b"\\ud800"])
)
"""Where, how many bytes go, and what comes in their place."""
DEEP = b"[" * 200_000
LONG = b'"' + b"a" * 200_000 + b'",'


def made(path: Path) -> Path:
    """A good file of its kind."""
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(ROWS), path)
    elif path.suffix in (".csv", ".tsv"):
        rows = [("text", "label"), *((f'"{row["text"]}"', str(row["label"])) for row in ROWS)]
        path.write_text("".join((("\t" if path.suffix == ".tsv" else ",").join(row)) + "\n" for row in rows))
    else:
        path.write_text(json.dumps(ROWS) if path.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def all_readers(path: Path) -> None:
    for read in (lambda: read_rows(path, ["text"], "label"), lambda: read_rows(path, [], None), lambda: first_rows(path)):
        said = ""
        try:
            read()
        except UserError as error:
            said = str(error)
        assert said.isprintable()
        assert len(said) < 1000


@settings(max_examples=80)
@given(st.sampled_from(SUFFIXES), st.lists(SPLICE, min_size=1, max_size=4))
@example(".json", [(0.0, 0, DEEP)])
@example(".jsonl", [(0.0, 0, DEEP)])
@example(".csv", [(0.0, 0, LONG)])
@example(".csv", [(0.5, 0, LONG)])
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, suffix: str, splices: Sequence[tuple[float, int, bytes]]) -> None:
    path = made(tmp_path_factory.mktemp("fuzz") / f"rows{suffix}")
    content = path.read_bytes()
    for where, gone, new in splices:
        place = round(where * len(content))
        content = content[:place] + new + content[place + gone :]
    path.write_bytes(content)
    all_readers(path)


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80)
@given(
    st.sampled_from([".json", ".jsonl"]),
    st.lists(st.dictionaries(st.sampled_from(["text", "label", "more"]), VALUE) | VALUE, max_size=4),
)
def test_any_values(tmp_path_factory: pytest.TempPathFactory, suffix: str, rows: list[object]) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"rows{suffix}"
    path.write_text(json.dumps(rows) if suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))
    all_readers(path)


@pytest.mark.parametrize(
    "said",
    [DEEP, b"[]", b"\xff", b'{"info": []}', b'{"info": {"features": []}}', b'{"info": {"features": {"label": []}}}'],
    ids=lambda said: str(said[:30]),
)
def test_what_datasets_left_in_the_metadata_is_anything(tmp_path: Path, said: bytes) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist(ROWS).replace_schema_metadata({b"huggingface": said}), path)
    all_readers(path)


@pytest.mark.parametrize("names", ['["no", "yes"]', '[1, "yes"]', "{}", "null"])
def test_names_of_labels_are_texts(tmp_path: Path, names: str) -> None:
    path = tmp_path / "rows.parquet"
    said = f'{{"info": {{"features": {{"label": {{"_type": "ClassLabel", "names": {names}}}}}}}}}'
    parquet.write_table(pa.Table.from_pylist(ROWS).replace_schema_metadata({b"huggingface": said.encode()}), path)
    assert read_rows(path, ["text"], "label").names == (("no", "yes") if names.startswith('["no') else None)
