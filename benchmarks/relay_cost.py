"""What encryption between pods costs: bytes, messages, steps and moves through two relays beside the same without, on loopback, in turns."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import relay_training
from ending import clean_up_when_told
from progress import Say, progress
from relay_ways import LOOPBACK, Asker, answer, relays, way
from relay_workers import workers
from report import Goal, goal, quantile, report

GIB = 1 << 30
SIZES = {"4 B": 4, "1 MB": 1 << 20, "64 MB": 64 << 20}
"""Of tensors that workers send."""
COUNTS = {"4 B": 500, "1 MB": 100, "64 MB": 5}
PARTS = ("bytes", "messages", "steps", "moves")
Round = dict[str, Any]


def main() -> int:
    """Exit code 0 when all goals are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default %(default)s)")
    parser.add_argument("--bytes", type=int, default=GIB, help="of the stream (default %(default)s)")
    parser.add_argument("--steps", type=int, default=1, help="in a turn (default %(default)s)")
    parser.add_argument("--moves", type=int, default=2, help="of a job, of which each turn has one (default %(default)s)")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one (default all)")
    options = parser.parse_args()
    clean_up_when_told()
    say, parts = progress(), options.part or PARTS
    found: dict[str, list[Round]] = {part: [] for part in PARTS}
    if "bytes" in parts:
        found["bytes"] = stream(options.rounds, options.bytes, say)
    if "messages" in parts:
        found["messages"] = between(options.rounds, say)
    if "steps" in parts:
        found["steps"] = relay_training.steps(options.rounds, options.steps, say)
    if "moves" in parts:
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as folder:
            found["moves"] = relay_training.moves(options.rounds, options.moves, Path(folder), say)
    print(show(found))
    details = found | {"bytes of a stream": options.bytes, "moves": relay_training.details(found["moves"])}
    whole = options.rounds >= 3 and options.part is None
    return report("relay" if whole else "relay-short", goals(found), details)


def show(found: dict[str, list[Round]]) -> str:
    """For people."""
    tables = []
    if found["bytes"]:
        tables.append(streams_table(found["bytes"]))
    if found["messages"]:
        tables.append(messages_table(found["messages"]))
    if found["steps"] or found["moves"]:
        tables.append(relay_training.table(found["steps"], found["moves"]))
    return "\n" + "\n\n".join(tables)


def stream(rounds: int, size: int, say: Say) -> list[Round]:
    """A stream of ``size`` bytes and round trips of a byte, straight and through relays."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs,), daemon=True)
    process.start()
    port = ours.recv()
    found = []
    try:
        with relays() as pair:
            place, lines = way(pair, port)
            for number in range(rounds):
                each: Round = {}
                for name, where in (("straight", (LOOPBACK, port)), ("relayed", place)):
                    with contextlib.closing(Asker(where, port)) as asker:
                        asker.ask(1, 100)  # the ways are warm
                        trips = asker.ask(1, 1000)
                        before = pair.spent
                        (seconds,) = asker.ask(size, 1)
                        spent = (pair.spent - before) / 2 / (size / 1e9)
                    each[name] = {
                        "trip": median(trips),
                        "trip_p99": quantile(trips, 0.99),
                        "rate": size / seconds,
                        "spent": spent,
                    }
                each["memory"] = pair.memory
                found.append(each)
                words = ", ".join(f"{name} {each[name]['rate'] / 1e9:.2f} GB/s" for name in ("straight", "relayed"))
                say(f"stream {number + 1}/{rounds}: {words}")
            for line in lines:
                line.close()
    finally:
        process.kill()
    return found


def between(rounds: int, say: Say) -> list[Round]:
    """Median seconds from a worker's message to its answer, by size."""
    found, first = [], 0
    with relays() as pair:
        made = {"straight": workers(), "relayed": workers(pair.near, pair.far)}
        for number in range(rounds):
            each: Round = {name: {} for name in made}
            for label, size in SIZES.items():
                for name, pair_of in made.items():
                    each[name][label] = median(pair_of.ask(size, COUNTS[label], first))
                first += COUNTS[label]
            found.append(each)
            words = "; ".join(f"{name} " + ", ".join(f"{k} {1000 * v:.2f} ms" for k, v in each[name].items()) for name in made)
            say(f"messages {number + 1}/{rounds}: {words}")
        for each_pair in made.values():
            each_pair.close()
    return found


def goals(found: dict[str, list[Round]]) -> list[Goal]:
    """What was to be reached, for what was measured."""
    wanted = []
    if found["bytes"]:
        rate = median(each["relayed"]["rate"] for each in found["bytes"]) / 1e9
        wanted.append(goal("bytes a second through two relays, in GB", ">=", 0.3, rate))
    if found["messages"]:
        later = median(each["relayed"]["4 B"] - each["straight"]["4 B"] for each in found["messages"])
        wanted.append(goal("a small message and its answer take longer by", "<=", 1.0, 1000 * later, " ms"))
    return [*wanted, *relay_training.goals(found["steps"], found["moves"])]


def streams_table(streams: list[Round]) -> str:
    """For people."""
    lines = [f"{'':12}{'GB/s':>10}{'trip of a byte':>18}{'p99':>12}{'processor, s/GB of each relay':>32}"]
    for name in ("straight", "relayed"):
        of = [each[name] for each in streams]
        cells = [f"{median(e['rate'] for e in of) / 1e9:.2f}", f"{1e6 * median(e['trip'] for e in of):.0f} us"]
        cells += [f"{1e6 * median(e['trip_p99'] for e in of):.0f} us"]
        spent = median(e["spent"] for e in of)
        lines.append(f"{name:12}{cells[0]:>10}{cells[1]:>18}{cells[2]:>12}{spent if name == 'relayed' else 0:>32.2f}")
    lines.append(f"memory of a relay: {max(each['memory'] for each in streams):.0f} MB")
    return "\n".join(lines)


def messages_table(messages: list[Round]) -> str:
    """For people."""
    lines = [f"{'tensor':12}{'straight':>14}{'relayed':>14}{'ratio':>10}"]
    for label in SIZES:
        straight, relayed = (median(each[name][label] for each in messages) for name in ("straight", "relayed"))
        lines.append(f"{label:12}{1000 * straight:>11.2f} ms{1000 * relayed:>11.2f} ms{relayed / straight:>10.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
