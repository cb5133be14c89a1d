"""Whatever a file holds, loading it gives a job or a SpecError with lines that name a place: nothing else ever comes out."""

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lmj_api.fields import field_type
from lmj_api.load import SpecError, load_job
from lmj_api.spec import JobSpec

PATHS = sorted(field_type(JobSpec).paths())
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates() | st.binary(max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=6,
)


def check(document: object, sets: list[str]) -> None:
    lines: tuple[str, ...] | None = None
    try:
        load_job(document, base=Path("/nowhere"), sets=sets)
    except SpecError as error:
        lines = error.lines
    assert lines is None or (lines and all(line.strip() for line in lines))


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(PATHS), VALUES, min_size=1, max_size=3), VALUES)
def test_any_value_at_any_place(values: dict[str, Any], name: Any) -> None:
    spec: dict[str, Any] = {
        "model": {"scratch": {}},
        "dataset": {"source": "r.csv", "text": ["review"], "label": "label"},
        "output": {"path": "o"},
    }
    for path, value in values.items():
        node = spec
        *parents, last = path.split(".")
        for parent in parents:
            child = node.get(parent)
            node[parent] = node = child if isinstance(child, dict) else {}
        node[last] = value
    check({"apiVersion": "lmj.dev/v1alpha1", "kind": "LiveMigrationJob", "metadata": name, "spec": spec}, [])
    check({"apiVersion": "lmj.dev/v1alpha1", "kind": "LiveMigrationJob", "metadata": {"name": "q"}, "spec": spec}, [])


@settings(max_examples=60)
@given(st.sampled_from(PATHS) | st.text(max_size=12), st.text(max_size=12))
def test_any_set(path: str, value: str) -> None:
    spec = {"model": {"scratch": {}}, "dataset": {"source": "r.csv", "text": ["r"], "label": "l"}, "output": {"path": "o"}}
    check(
        {"apiVersion": "lmj.dev/v1alpha1", "kind": "LiveMigrationJob", "metadata": {"name": "q"}, "spec": spec},
        [f"{path}={value}"],
    )
