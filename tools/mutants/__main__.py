"""``python -m mutants``: draws mutants by a seed, runs the tests that go through each, and says which survive. See docs/mutants.md."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mutants import judge
from mutants.known import StaleError, equivalent
from mutants.mutant import Mutant, all_mutants
from mutants.record import Map, recorded
from mutants.report import Key, Result, progress, report
from mutants.swap import Functions

TESTS = ("tests/unit/engine", "tests/unit/checkpoint", "tests/unit/operator", "tests/simulation")


def main() -> int:
    """Exit code: 0; 1: the score is short, or a survivor is not known; 2: the tests fail without a mutant, or the list is stale."""
    options = arguments()
    judge.prepare_environment()
    mutants = list(all_mutants())
    try:
        known = equivalent(mutants)
    except (StaleError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    drawn = sorted((m for m in mutants if options.only in m.name), key=lambda m: m.rank(options.seed))
    chosen = drawn[options.skip :][: options.count]
    begun = time.monotonic()
    results: dict[Key, Result] = {}
    files = {mutant.file for mutant in mutants}

    def work(session: pytest.Session) -> None:
        with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
            found = recorded(session, Path(scratch), files, options.jobs)
            progress(f"{len(found.seconds)} tests are recorded, after {time.monotonic() - begun:.0f} s")
            functions = Functions(files)
            results.update(judged(session, functions, [m for m in chosen if m.key not in known], found, Path(scratch), options))

    code = judge.collect(options.tests, work)
    if code != 0:
        return 2
    return report(chosen, known, results, time.monotonic() - begun, options.seed, options.least, options.json)


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="which ones are drawn")
    parser.add_argument("--count", type=int, default=320, help="how many (320)")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many, the first drawn")
    parser.add_argument("--only", default="", help="only those whose 'file:line: text  [change]' has this in it")
    parser.add_argument("--tests", nargs="*", default=list(TESTS), help="folders of tests")
    parser.add_argument("--jobs", type=int, default=2, help="forks at a time (2)")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests for a mutant, the fastest first (60)")
    parser.add_argument("--least", type=float, default=95.0, help="per cent to be killed (95)")
    parser.add_argument("--json", type=Path, help="write the results there")
    return parser.parse_args()


def judged(
    session: pytest.Session, functions: Functions, mutants: list[Mutant], found: Map, scratch: Path, options: argparse.Namespace
) -> dict[Key, Result]:
    """All of them."""
    everywhere: dict[str, set[str]] = defaultdict(set)
    for (file, _), tests in found.tests.items():
        everywhere[file] |= tests
    results: dict[Key, Result] = {}
    running: dict[int, tuple[Mutant, dict[str, float], Callable[[judge.Child], None]]] = {}

    def starts() -> Iterator[Callable[[], judge.Child]]:
        for number, mutant in enumerate(mutants):
            costs = affordable({test: found.seconds[test] for test in found.through(mutant, everywhere)}, options.budget)
            if costs:
                yield start(mutant, costs, number)
            else:
                results[mutant.key] = Result(False, "no test goes there", 0, 0.0, 0.0)
                progress(f"survives: {mutant.name}: no test goes there")

    def start(mutant: Mutant, costs: dict[str, float], number: int) -> Callable[[], judge.Child]:
        make = judge.judge(session, functions, mutant, costs, scratch / f"mutant-{number}")

        def run() -> judge.Child:
            child = make()
            running[child.pid] = mutant, costs, judge.hears(costs)
            return child

        return run

    def ended(child: judge.Child) -> None:
        mutant, costs, _ = running.pop(child.pid)
        if child.code in (5, 70) and not child.hung:
            raise SystemExit(f"{mutant.name}: {child.log.read_text()[-2000:]}")
        last = child.lines[-1] if child.lines else "as it is imported"
        how = ("hangs in " if child.hung else "dies in ") + last
        result = Result(child.hung or child.code != 0, how, len(costs), child.cpu, time.monotonic() - child.begun)
        results[mutant.key] = result
        verdict = "killed" if result.killed else "survives"
        progress(
            f"{len(results)}/{len(mutants)} {verdict}: {mutant.name} ({how if result.killed else len(costs)}; {child.cpu:.1f} s)"
        )
        child.log.unlink(missing_ok=True)

    judge.run_all(list(starts()), options.jobs, lambda child: running[child.pid][2](child), ended)
    return results


def affordable(costs: dict[str, float], budget: float) -> dict[str, float]:
    """The fastest ones, as many as fit: a mutant that none of them kills counts as a survivor."""
    total, kept = 0.0, dict[str, float]()
    for test, seconds in sorted(costs.items(), key=lambda item: (item[1], item[0])):
        total += seconds
        if kept and total > budget:
            break
        kept[test] = seconds
    return kept


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of others' libraries are not waited for
