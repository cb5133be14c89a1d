"""The user's rules on exits: what they may say, and which one decides."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lmj_api.patterns import check_pattern, found
from lmj_api.spec import Recovery, RecoveryRule, RuleAction
from lmj_operator.plan.failures.rules import CHARACTERS, judge

pytestmark = pytest.mark.integration


def rules(*documents: dict[str, object]) -> list[RecoveryRule]:
    return Recovery.model_validate({"rules": list(documents)}).rules


def test_the_first_that_matches_decides() -> None:
    made = rules(
        {"exitCodes": [3], "action": "Fail"},
        {"exitCodes": [3, 137], "logPattern": "memory", "action": "NextNode"},
        {"exitCodes": [137], "action": "Retry"},
    )
    verdict = judge(made, 3, "out of memory")
    assert verdict is not None
    assert (verdict.action, verdict.rule) == (RuleAction.FAIL, "recovery.rules[0] (exit code 3)")
    verdict = judge(made, 137, "out of memory")
    assert verdict is not None
    assert (verdict.action, verdict.rule) == (RuleAction.NEXT_NODE, "recovery.rules[1] (exit code 137, /memory/)")
    verdict = judge(made, 137, "killed")
    assert verdict is not None
    assert verdict.action is RuleAction.RETRY
    assert judge(made, 1, "out of memory") is None
    assert judge(made, None, "out of memory") is None
    assert judge([], 137, "") is None


def test_a_signal_is_128_and_its_number() -> None:
    verdict = judge(rules({"exitCodes": [137], "action": "Fail"}), -9, "")
    assert verdict is not None
    assert verdict.rule == "recovery.rules[0] (exit code 137)"


def test_a_pattern_is_looked_for_in_the_message_and_the_last_lines() -> None:
    made = rules({"logPattern": "Xid [0-9]+|ECC error", "action": "NextNode"})
    assert judge(made, 1, "NVRM: Xid 79") is not None
    assert judge(made, 1, "", ["a", "uncorrectable ECC error", "b"]) is not None
    assert judge(made, None, "the node had an ECC error") is not None
    assert judge(made, 1, "", ["Xid 79", *["x"] * 10]) is None, "only the last ten lines"
    assert judge(made, 1, "x" * CHARACTERS + "Xid 79") is None, "only a line's beginning"


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({"action": "Fail"}, "without either it would match every exit"),
        ({"exitCodes": [], "action": "Fail"}, "at least 1 item"),
        ({"exitCodes": [-9], "action": "Fail"}, "greater than or equal to 1"),
        ({"exitCodes": [256], "action": "Fail"}, "less than or equal to 255"),
        ({"exitCodes": [1], "action": "Ignore"}, "'Retry', 'Fail' or 'NextNode'"),
        ({"logPattern": "[a", "action": "Fail"}, "'[a' is no regular expression: unterminated character set at position 0"),
        ({"logPattern": "a" * 201, "action": "Fail"}, "at most 200 characters"),
        ({"logPattern": "(a+)+b", "action": "Fail"}, "groups are not supported: write alternatives out"),
        ({"logPattern": "a++b", "action": "Fail"}, "++ repeats a repetition: write +"),
        ({"logPattern": "a{30}|b{1,21}", "action": "Fail"}, "add up to more than 50: write * or + instead"),
        ({"logPattern": "[abcdefghijklmnop]{20}", "action": "Fail"}, "add up to more than 50: write * or + instead"),
        ({"logPattern": f"[{'é' * 21}]", "action": "Fail"}, "more than 20 characters in classes that are not ASCII"),
        ({"logPattern": r"a\Bb", "action": "Fail"}, r"\B is not supported: write the character itself"),
    ],
)
def test_what_a_rule_must_not_say(rule: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError) as error:
        rules(rule)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    "pattern", [r"CUDA error: .* \(code [0-9]+\)", "a.*b.*c|d.*e.*f", r"[(*+?]x{3}", r"\(\(\*\*", "[]*+]+", "a.*b.*c.*d"]
)
def test_what_a_pattern_may_be(pattern: str) -> None:
    assert judge(rules({"logPattern": pattern, "action": "Fail"}), 1, "nothing like it") is None


ATOMS = [
    "a",
    "b",
    "x",
    ".",
    "é",
    "[^a]",
    "[a-c]",
    "[]x]",
    r"[\w-]",
    r"[^\s\d]",
    r"\w",
    r"\W",
    r"\d",
    r"\S",
    r"\b",
    r"\.",
    r"\x61",
]
ATOMS += ["^", "$", "[[&~-]", "{", "}"]
REPEATS = ["", "", "*", "+", "?", "{2}", "{,2}", "{1,}", "{1,3}", "*?", "{}"]
PATTERNS = st.lists(
    st.lists(st.tuples(st.sampled_from(ATOMS), st.sampled_from(REPEATS)), min_size=1, max_size=4), min_size=1, max_size=3
).map(lambda ways: "|".join("".join(atom + repeat for atom, repeat in way) for way in ways))
LINES = st.text(alphabet="abcxé []&~-{}.^ 1_\u2003", max_size=12)


def refused(pattern: str) -> bool:
    """Whether it is, in a line."""
    try:
        check_pattern(pattern)
    except ValueError as error:
        return bool(str(error))
    return False


@pytest.mark.filterwarnings("ignore::FutureWarning")
@settings(max_examples=300, deadline=None)
@given(PATTERNS, LINES)
def test_what_is_found_is_what_python_finds(pattern: str, line: str) -> None:
    if not refused(pattern):
        assert found(pattern, line) == (re.search(pattern, line, re.ASCII) is not None)


@given(st.text(max_size=200))
def test_any_text_is_a_pattern_or_is_refused(pattern: str) -> None:
    assert refused(pattern) or found(pattern, "some line") in (True, False)


@pytest.mark.parametrize(
    "worst",
    [
        "|".join(["a+a+b"] * 33),
        "|".join([f".*.*{letter}" for letter in "bcdefghijklmnopqrstuvwxyz"]),
        "a*" * 99 + "b",
        "a?" * 66 + "a" * 66,
        ".*[^b].{40}c",
        "[^é]*[^a]?" * 18 + ".{40}z",
    ],
)
def test_the_slowest_patterns_do_not_stop_an_operator(worst: str) -> None:
    """32 rules on a message and ten lines: what matches none of them takes the longest."""
    documents: list[dict[str, object]] = [{"logPattern": f"{number}{worst}"[:200], "action": "Fail"} for number in range(32)]
    made = rules(*documents)
    line = "".join("aé𐍈"[n * n % 3] for n in range(1000))
    taken = []
    for _ in range(3):
        began = time.process_time()
        judge(made, 1, line, [line] * 100)
        taken.append(time.process_time() - began)
    assert min(taken) < 0.05
