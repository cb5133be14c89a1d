"""What a proxy does to calls: rules, each with a condition, a fault, and how often."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.calls import Target


@dataclass(frozen=True)
class Delay:
    """The call is forwarded ``seconds`` later; with ``longest`` above that, a random time between the two."""

    seconds: float
    longest: float = 0.0


@dataclass(frozen=True)
class Drop:
    """The connection is closed without an answer, before the call reached the server or (``forwarded``) after."""

    forwarded: bool = False


@dataclass(frozen=True)
class Refuse:
    """An error of this HTTP status; ``forwarded``: although the server did what was asked. ``retry_after`` in seconds, for 429."""

    status: int
    retry_after: int | None = None
    forwarded: bool = False


@dataclass(frozen=True)
class CutWatch:
    """A watch's connection is closed after so many events."""

    events: int


@dataclass(frozen=True)
class Stale:
    """A get or list is answered as an earlier one of the same was; forwarded when there was none."""


Fault = Delay | Drop | Refuse | CutWatch | Stale


@dataclass(frozen=True)
class Rule:
    """``fault`` for calls whose verb is in ``verbs`` and whose path ``path`` is found in (a regular expression), with probability ``chance``,
    the first ``skip`` matching ones excepted, ``times`` times at most."""

    fault: Fault
    verbs: frozenset[str] = frozenset()
    path: str = ""
    chance: float = 1.0
    skip: int = 0
    times: int | None = None

    def matches(self, target: Target, path: str) -> bool:
        """Whether the rule is about such a call. Every fault is about calls that it can be done to only."""
        if isinstance(self.fault, CutWatch) and target.verb != "watch":
            return False
        if isinstance(self.fault, Stale) and target.verb not in ("get", "list"):
            return False
        return (not self.verbs or target.verb in self.verbs) and re.search(self.path, path) is not None


@dataclass
class Program:
    """Rules at work. Equal seeds give equal faults to equal sequences of a rule's calls, whatever other calls come between."""

    rules: Sequence[Rule] = ()
    seed: int = 0
    _seen: dict[int, int] = field(default_factory=dict)
    _done: dict[int, int] = field(default_factory=dict)

    def fault_for(self, target: Target, path: str) -> Fault | None:
        """The fault of the first rule that matches and strikes, delays with their time drawn."""
        for index, rule in enumerate(self.rules):
            if not rule.matches(target, path):
                continue
            seen = self._seen[index] = self._seen.get(index, 0) + 1
            draw = random.Random(f"{self.seed}/{index}/{seen}")
            done = self._done.get(index, 0)
            if seen <= rule.skip or (rule.times is not None and done >= rule.times) or draw.random() >= rule.chance:
                continue
            self._done[index] = done + 1
            if isinstance(rule.fault, Delay) and rule.fault.longest > rule.fault.seconds:
                return Delay(draw.uniform(rule.fault.seconds, rule.fault.longest))
            return rule.fault
        return None
