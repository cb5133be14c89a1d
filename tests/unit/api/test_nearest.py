"""The nearest right name."""

import pytest

from lmj_api.nearest import did_you_mean, nearest


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("text", "text"),
        ("TEXT", "text"),
        ("txet", "text"),
        ("max-length", "maxLength"),
        ("max_length", "maxLength"),
        ("qqq", None),
    ],
)
def test_nearest(name: str, expected: str | None) -> None:
    assert nearest(name, ["label", "text", "maxLength"]) == expected


def test_did_you_mean() -> None:
    assert did_you_mean("revew", ["review", "label"]) == "; did you mean review?"
    assert did_you_mean("zzz", ["review", "label"]) == ""
