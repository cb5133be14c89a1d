"""A module that a run leaves out as a whole is not imported."""

from pathlib import Path

import pytest
from left_out import left_out

UNIT = "not integration and not e2e and not slow"
ALL_OF_IT = "import pytest\n\npytestmark = pytest.mark.integration\n"


@pytest.mark.parametrize(
    ("text", "expression", "expected"),
    [
        (ALL_OF_IT, UNIT, True),
        ("pytestmark = [\n    pytest.mark.integration,\n    pytest.mark.skipif(True, reason='x'),\n]\n", UNIT, True),
        ("pytestmark = [pytest.mark.slow]\n", UNIT, True),
        ("pytestmark = pytest.mark.e2e\n", "integration and not e2e and not slow", True),
        (ALL_OF_IT, "integration and not e2e and not slow", False),
        (ALL_OF_IT, "e2e and not slow", False),
        (ALL_OF_IT, "", False),
        (ALL_OF_IT, "not integration or e2e", False),
        (ALL_OF_IT, "not (integration and e2e)", False),
        (ALL_OF_IT, "not not integration", False),
        ("pytestmark = pytest.mark.skipif(True, reason='x')\n", UNIT, False),
        ("pytestmark = pytest.mark.integrations\n", UNIT, False),
        ("class TestSome:\n    pytestmark = pytest.mark.slow\n", UNIT, False),
        ("@pytest.mark.integration\ndef test_one() -> None: ...\n\n\ndef test_other() -> None: ...\n", UNIT, False),
    ],
)
def test_a_module_is_left_out_where_all_of_it_would_be(text: str, expression: str, expected: bool) -> None:
    assert left_out(text, expression) is expected


def test_pytest_asks(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(ALL_OF_IT)
    (tmp_path / "some.txt").write_text(ALL_OF_IT)
    (tmp_path / "test_more.py").write_text("")
    ignored = [
        path.name
        for path in sorted(tmp_path.iterdir())
        if request.config.hook.pytest_ignore_collect(collection_path=path, config=request.config)
    ]
    assert ignored == (["test_some.py"] if left_out(ALL_OF_IT, request.config.getoption("markexpr")) else [])
