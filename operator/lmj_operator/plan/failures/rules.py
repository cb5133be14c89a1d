"""The user's rules on how a worker or a pod ended: ``recovery.rules``, the first that matches."""

from collections.abc import Sequence
from dataclasses import dataclass

from lmj_api.patterns import found
from lmj_api.spec.recovery import RecoveryRule, RuleAction

LINES = 10
"""Last lines of stderr that a pattern is looked for in."""

CHARACTERS = 300
"""Of each line: the time of a match grows with it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule says about an exit."""

    action: RuleAction
    rule: str
    """The rule by its place in the spec and by what matched: ``recovery.rules[0] (exit code 137)``."""


def judge(rules: Sequence[RecoveryRule], code: int | None, message: str, stderr: Sequence[str] = ()) -> Verdict | None:
    """The verdict of the first of ``rules`` that matches; None: none does.

    ``code``: as agents say it, negative for a signal. A rule's exit codes are counted as in a pod: a signal is 128 and its number.
    """
    counted = None if code is None else 128 - code if code < 0 else code
    text = [line[:CHARACTERS] for line in (message, *stderr[-LINES:])]
    for number, rule in enumerate(rules):
        if rule.exit_codes is not None and counted not in rule.exit_codes:
            continue
        if rule.log_pattern is not None and not any(found(rule.log_pattern, line) for line in text):
            continue
        code_text = [f"exit code {counted}"] if rule.exit_codes is not None else []
        pattern = [f"/{rule.log_pattern}/"] if rule.log_pattern is not None else []
        return Verdict(rule.action, f"recovery.rules[{number}] ({', '.join([*code_text, *pattern])})")
    return None
