"""The user's rules on exits: what they may say, and which one decides."""

import time

import pytest
from pydantic import ValidationError

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
        ({"logPattern": "a.*b.*c.*d", "action": "Fail"}, "more than 2 repetitions"),
        ({"logPattern": "a?b{2}c{1,3}d", "action": "Fail"}, "more than 2 repetitions"),
    ],
)
def test_what_a_rule_must_not_say(rule: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError) as error:
        rules(rule)
    assert complaint in str(error.value)


@pytest.mark.parametrize("pattern", [r"CUDA error: .* \(code [0-9]+\)", "a.*b.*c|d.*e.*f", r"[(*+?]x{3}", r"\(\(\*\*", "[]*+]+"])
def test_what_a_pattern_may_be(pattern: str) -> None:
    assert judge(rules({"logPattern": pattern, "action": "Fail"}), 1, "nothing like it") is None


def test_the_slowest_pattern_does_not_stop_an_operator() -> None:
    worst = "|".join([f".*.*{letter}" for letter in "bcdefghijklmnopqrstuvwxyz"])
    began = time.process_time()
    assert judge(rules({"logPattern": worst, "action": "Fail"}), 1, "", ["a" * 1000] * 100) is None
    assert time.process_time() - began < 20
