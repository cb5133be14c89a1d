"""Write the tables of measured figures into Markdown: ``figures.py FILE...``, or ``figures.py --check FILE...`` to fail when one is stale.

A table stands between ``<!-- figures: NAME -->`` and ``<!-- end -->``, and is made from ``benchmarks/results``.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- figures: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
BUSY = ("each of two single processes at once", "two single processes at once")
"""What the pipeline's benchmark calls, and called, the two busy cores."""
OURS = "this pipeline"
BENCHMARKS = (
    "pipeline",
    "recovery",
    "recovery-costs",
    "recovery-cluster",
    "migration",
    "migration-cluster",
    "replicas",
    "script",
    "checkpoint",
    "operator",
    "plan",
)
NONE = ""
UNMEASURED = "No results are kept of this one yet.\n"
KEPT = {"nothing": "", "standby": "`standby: 1`", "replica": "`hotStandby: true`"}
"""What a job keeps ready, as its spec says it."""

Results = dict[str, Any]
Row = Sequence[object]


def results(name: str) -> Results:
    """What a benchmark wrote."""
    content: Results = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return content


def _kept(name: str) -> bool:
    """Whether the results of a benchmark that is new are there."""
    return (RESULTS / f"{name}.json").exists()


def table(head: Row, rows: Iterable[Row]) -> str:
    """As Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def number(value: float, unit: str = "") -> str:
    """With as many digits as are worth reading."""
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3
    return f"{value:.{digits}f}{unit}"


def span(values: Iterable[float], unit: str = "") -> str:
    """The smallest and the largest."""
    values = list(values)
    return f"{number(min(values))} to {number(max(values), unit)}"


def grouped(items: Iterable[Results], *names: str) -> dict[tuple[Any, ...], list[Results]]:
    """By the values of these fields, in the order in which they first appear."""
    groups: dict[tuple[Any, ...], list[Results]] = defaultdict(list)
    for item in items:
        groups[tuple(item[name] for name in names)].append(item)
    return groups


def goals(name: str) -> str:
    """What the benchmark was to reach."""
    rows = [
        (each["name"], each["goal"], number(each["measured"], each["unit"]), "yes" if each["met"] else "no")
        for each in results(name)["goals"]
    ]
    return table(("What", "Goal", "Measured", "Met"), rows)


def pipeline() -> str:
    """Step time of each contender."""
    rounds: list[dict[str, float]] = results("pipeline")["details"]["rounds"]
    busy = [took[name] for took in rounds for name in BUSY if name in took]
    rows = []
    for name in dict.fromkeys(name for took in rounds for name in took):
        times = [took[name] for took in rounds if name in took]
        ideal = [2 * took[name] / took[each] for took in rounds for each in BUSY if each in took and name in took]
        beside = [took[name] / took[OURS] for took in rounds if name in took and OURS in took]
        rows.append(
            (
                f"**{name}**" if name == OURS else name,
                len(times),
                number(median(times), " s"),
                span(times, " s"),
                f"{median(ideal or [2 * median(times) / median(busy)]):.2f}",
                f"{median(beside):.3f}" if beside and name != OURS else NONE,
            )
        )
    rows.sort(key=lambda row: float(str(row[4])))
    head = ("Contender", "Rounds", "Step, median", "Shortest and longest", "Of two busy cores", "Of this pipeline")
    return table(head, rows)


def checkpoint_cost() -> str:
    """What a checkpoint costs."""
    pairs: list[float] = [100 * (each - 1) for each in results("pipeline")["details"]["checkpoint"]]
    return table(("Pairs", "Cost, median", "Lowest and highest"), [(len(pairs), number(median(pairs), "%"), span(pairs, "%"))])


def recovery() -> str:
    """Workers that were killed."""
    rows = []
    details = results("recovery")["details"]
    for place, ((contender,), trials) in enumerate(grouped(details["trials"], "contender").items()):
        rows.append(
            (
                contender,
                len(trials),
                number(median(each["seconds"] for each in trials), " s"),
                number(details["p99 seconds"][place], " s"),
                number(mean(each["lost"] for each in trials)),
                max(each["lost"] for each in trials),
                number(median(each["restarted"] for each in trials)),
            )
        )
    head = ("Contender", "Kills", "p50", "p99", "Steps done again, mean", "Most", "Processes started")
    return table(head, rows)


def recovery_cluster() -> str:
    """Pods and nodes that were lost on a cluster."""
    groups = grouped(results("recovery-cluster")["details"]["trials"], "fault", "kind")
    rows = [
        (
            f"{fault}{f', with {KEPT[kind]}' if KEPT[kind] else ''}",
            len(trials),
            number(median(each["noticed"] for each in trials), " s"),
            number(median(each["seconds"] for each in trials), " s"),
            number(max(each["seconds"] for each in trials), " s"),
            max(each["lost"] for each in trials),
        )
        for (fault, kind), trials in sorted(groups.items(), key=lambda group: group[0][0], reverse=True)
    ]
    return table(("Fault", "Trials", "Noticed, p50", "New step, p50", "Longest", "Steps done again, most"), rows)


def recovery_memory() -> str:
    """Memory of the pods at rest."""
    rows = [
        (KEPT[kind] or "neither", sort, ", ".join(number(each) for each in megabytes))
        for kind, sorts in results("recovery-cluster")["details"]["memory MB"].items()
        for sort, megabytes in sorts.items()
    ]
    return table(("Job with", "Pod", "MB"), rows)


def recovery_costs() -> str:
    """What snapshots and checkpoints cost while nothing fails."""
    turns = results("recovery-costs")["details"]["turns"]
    rows = []
    for (mode,), of_mode in grouped(turns, "mode").items():
        arms = {arm: group for (arm,), group in grouped(of_mode, "arm").items()}
        shares = [100 * (b["step"] / n["step"] - 1) for n, b in zip(arms["neither"], arms["both"], strict=True)]
        step, used = (
            {arm: median(each[what] for each in group) for arm, group in arms.items()} for what in ("step", "processor")
        )
        rows.append(
            (
                mode,
                len(shares),
                number(step["neither"], " s"),
                number(step["both"], " s"),
                number(100 * results("recovery-costs")["details"]["medians"][mode], "%"),
                span(shares, "%"),
                f"{number(used['neither'])} and {number(used['both'], ' s')}",
            )
        )
    head = ("Cores", "Rounds", "Step, neither", "Step, both", "Cost, median", "Lowest and highest", "Processor time a step")
    return table(head, rows)


def recovery_rest() -> str:
    """What pods that are kept ready take at rest."""
    rows = [
        (
            each["sort"],
            number(each["proportional_mb"], " MB"),
            number(each["resident_mb"], " MB"),
            number(each["processor"], " s"),
        )
        for each in results("recovery-costs")["details"]["rest"]
    ]
    return table(("Pod", "Memory, shared pages by parts", "Resident", "Processor time a minute"), rows)


def moves(name: str) -> str:
    """Ranks that were moved."""
    details = results(name)["details"]
    rows = []
    for (way, size, stages), group in grouped(details["moves"], "way", "size", "stages").items():
        waited, sent = ([each[field] for each in group if each[field] is not None] for field in ("waited", "sent"))
        rows.append(
            (
                way,
                size,
                stages,
                len(group),
                number(median(each["step"] for each in group), " s"),
                number(1000 * median(waited), " ms") if waited else NONE,
                number(median(each["pause"] for each in group), " s"),
                span((each["pause"] for each in group), " s"),
                number(100 * median(each["rate"] for each in group), "%"),
                number(median(sent), " MB") if sent else NONE,
                number(median(each["total"] for each in group), " s"),
            )
        )
    head = (
        "Way",
        "Model",
        "Stages",
        "Moves",
        "Step",
        "Nobody computes",
        "Pause, median",
        "Shortest and longest",
        "Speed meanwhile",
        "Sent",
        "In all",
    )
    return table(head, rows)


def goodput() -> str:
    """Training that is left with a move a minute."""
    rows = []
    for stages, losses in results("migration")["details"]["goodput"].items():
        lost = [each["seconds"] - each["steps"] / each["usual"] for each in losses]
        cores = "two stages and the target share two cores" if stages == "2" else "the target has a core of its own"
        rows.append((cores, len(lost), number(median(lost), " s"), number(100 * (1 - median(lost) / 60), "%")))
    return table(("Cores", "Moves", "A move takes from training, median", "Left with a move a minute"), rows)


def replicas() -> str:
    """Step time of two replicas, and of data parallel."""
    rounds: list[dict[str, float]] = results("replicas")["details"]["rounds"]
    ours = next(iter(name for name in rounds[0] if "pipeline" in name))
    rows = []
    for name in sorted(rounds[0], key=lambda name: name != ours):
        times = [took[name] for took in rounds]
        beside = number(median(took[ours] / took[name] for took in rounds)) if name != ours else NONE
        rows.append((f"**{name}**" if name == ours else name, len(times), number(median(times), " s"), span(times, " s"), beside))
    return table(("Contender", "Rounds", "Step, median", "Shortest and longest", "Of this that two replicas take"), rows)


def replica_deaths() -> str:
    """One of four replicas, or processes, that is killed."""
    rows = []
    for each in results("replicas")["details"]["deaths"]:
        times = [trial["seconds"] for trial in each["trials"]]
        lost = [trial["lost"] or 0 for trial in each["trials"]]
        started = median(trial["restarted"] for trial in each["trials"])
        contender = each["trials"][0]["contender"]
        rows.append((contender, len(times), number(median(times), " s"), span(times, " s"), max(lost), number(started)))
    return table(("Contender", "Kills", "p50", "Shortest and longest", "Steps done again, most", "Processes started"), rows)


def replica_joins() -> str:
    """Steps while a second replica joins."""
    rows = [
        (
            number(each["step"], " s"),
            number(each["longest"], " s"),
            number(each["ratio"]),
            number(each["quiet"], " s"),
            number(each["longest"] / each["quiet"]),
            each["steps"],
        )
        for each in results("replicas")["details"]["joins"]
    ]
    head = (
        "Step before, median",
        "Longest meanwhile",
        "Of the median",
        "Longest of as many before",
        "Of this that the longest meanwhile takes",
        "Steps until it joined",
    )
    return table(head, rows)


def script() -> str:
    """A user's script whose process is killed, or whose node is lost."""
    rows = [
        (
            contender,
            {"processes": "process killed", "memory": "process killed, `command.memory`", "nodes": "node lost"}[fault],
            len(trials),
            number(median(each["seconds"] for each in trials if each["seconds"] is not None), " s"),
            span((each["seconds"] for each in trials if each["seconds"] is not None), " s"),
            number(mean(each["lost"] for each in trials if each["lost"] is not None)),
        )
        for (contender, fault), trials in grouped(results("script")["details"]["trials"], "contender", "fault").items()
    ]
    return table(("Contender", "Fault", "Trials", "New step, p50", "Shortest and longest", "Steps done again, mean"), rows)


def _training(of: Sequence[Results]) -> Row:
    step, first, peak = (median(each[what] for each in of) for what in ("step", "first", "peak_mb"))
    sizes = [each["checkpoint_mb"] for each in of if each["checkpoint_mb"] is not None]
    return number(step, " s"), number(first, " s"), number(peak, " MB"), number(median(sizes), " MB") if sizes else NONE


def operator() -> str:
    """The operator with many jobs."""
    found = results("operator")["details"]
    empty, now = found["resident MB, empty and now"]
    rows: list[Row] = [
        ("Jobs, and ranks of each", f"{found['jobs']}, {found['ranks']}"),
        ("Time until all run", number(found["seconds until all run"], " s")),
        ("Processor time of the operator until then", number(found["operator CPU seconds until all run"], " s")),
        *(
            (f"The same of {name}", number(seconds, " s"))
            for name, seconds in found["CPU seconds of the others until all run"].items()
        ),
        ("Operator at rest", f"{number(100 * found['idle CPU, cores'])}% of a core"),
        ("Resident memory without jobs, and with all", f"{number(empty)} and {number(now, ' MB')}"),
        ("Passes a job until it runs", number(found["passes a job until all run"])),
        ("Writes a job until it is idle", number(found["mean writes a job"])),
        ("A worker's exit to its `StartWorker`, median", number(median(found["exit seconds"]), " s")),
        ("A pod's deletion to the next pod's create, median", number(median(found["deletion seconds"]), " s")),
    ]
    return table(("What", "Measured"), rows)


def tenants() -> str:
    """Another tenant's jobs beside hostile ones."""
    if not _kept("tenants"):
        return UNMEASURED
    found = results("tenants")["details"]
    starts = found["starts"]
    rows: list[Row] = [
        ("Hostile jobs", ", ".join(f"{count} of {kind}" for kind, count in found["jobs"].items())),
        *(
            (
                f"The other tenant's start, {when}: median, 99th percentile",
                ", ".join(number(starts[part][each], " s") for each in ("p50", "p99")),
            )
            for when, part in (("alone", "idle"), ("beside them", "siege"))
        ),
        (
            "Time without an answer: median, 99th percentile",
            ", ".join(number(1000 * found["answers"][part], " ms") for part in ("p50", "p99")),
        ),
        (
            "Processor time of the operator, and seconds of the run",
            ", ".join(number(found[each], " s") for each in ("operator CPU seconds", "seconds under siege")),
        ),
    ]
    return table(("What", "Measured"), rows)


def tenants_goals() -> str:
    """What was to be reached beside them."""
    return goals("tenants") if _kept("tenants") else UNMEASURED


def plan() -> str:
    """Passes of the plan, and what they store and tell."""
    rows = [
        (
            f"{each['ranks']:,}",
            number(1000 * each["steady"], " ms"),
            number(1000 * each["change"], " ms"),
            each["passes"],
            f"{each['actions']:,}",
            number(1000 * (each["seconds"] + each["told"]), " ms"),
            number(each["status"] / 1024, " KiB"),
            number(each["view"] / 1024, " KiB"),
            number(each["answer"] / 1024, " KiB"),
        )
        for each in results("plan")["details"]["sizes"]
    ]
    head = (
        "Ranks",
        "Pass, all is well",
        "Pass that forms the next view",
        "Passes for that",
        "Pods made and agents told",
        "View change",
        "Status",
        "View",
        "An agent's answer",
    )
    return table(head, rows)


def plan_messages() -> str:
    """Messages of a step, and what they cost the leader."""
    details = results("plan")["details"]
    costs = {each["ranks"]: each for each in details["leader"]}
    rows = [
        (
            f"{each['ranks']:,}",
            f"{each['commit']:,}",
            f"{each['exchange']:,}",
            number(1000 * costs[each["ranks"]]["commit"], " ms"),
            f"{number(costs[each['ranks']]['links'])} of a core",
        )
        for each in details["sizes"]
    ]
    head = (
        "Ranks",
        "Messages of a commit at the leader",
        "Of the sum at each rank",
        "Processor time of a commit at the leader",
        "Of a second for links, at each rank",
    )
    return table(head, rows)


def checkpoints() -> str:
    """What each way to save takes."""
    details = results("checkpoint")["details"]
    rows = []
    for name in details["rounds"][0]:
        each = [took[name] for took in details["rounds"]]
        whole = median(saved["whole"] for saved in each)
        rows.append(
            (
                f"**{name}**" if name == "this project" else f"`{name}`" if "." in name else name,
                number(1000 * median(saved["stall"] for saved in each), " ms"),
                span((1000 * saved["stall"] for saved in each), " ms"),
                number(whole, " s"),
                number(details["bytes"] / whole / 1e9, " GB/s"),
                number(median(saved["processor"] for saved in each), " s"),
            )
        )
    head = ("Way", "Stall, median", "Shortest and longest", "Until it is on the disk", "Rate", "Processor time")
    return table(head, rows)


def checkpoint_loads() -> str:
    """What a checkpoint of two stages takes to be loaded into others."""
    rows = []
    for each in zip(*results("checkpoint")["details"]["loads"], strict=True):
        stages, replicas = each[0]["stages"], each[0]["replicas"]
        seconds, read = (median(load[name] for load in each) for name in ("seconds", "read"))
        rows.append((stages, replicas, number(seconds, " s"), f"{read:.3f}"))
    return table(("Stages", "Replicas", "All ranks of a replica, one after the other", "Bytes read, of those there are"), rows)


def summary() -> str:
    """The README's table."""
    workers = {
        contender: trials for (contender,), trials in grouped(results("recovery")["details"]["trials"], "contender").items()
    }
    ours, theirs = (next(t for name, t in workers.items() if what in name) for what in ("lmj", "torchrun"))
    lost = grouped(results("recovery-cluster")["details"]["trials"], "fault", "kind")
    moved = grouped(results("migration")["details"]["moves"], "way", "size", "stages")
    names = {(way, size, stages): group for (way, size, stages), group in moved.items() if size == "BERT-base"}
    live, shared = (names["live move", "BERT-base", stages] for stages in (1, 2))
    restart = next(group for (way, _, _), group in names.items() if way.startswith("restart"))

    def row(when: str, group: list[Results], time: str = "seconds", again: str = "lost") -> Row:
        return when, number(median(each[time] for each in group), " s"), max(each[again] for each in group)

    rows = [
        row("a worker is killed", ours),
        row("the same under `torchrun`", theirs),
        row(f"a pod is deleted, {KEPT['replica']}", lost["pod deleted", "replica"]),
        row(f"a node loses power, {KEPT['replica']}", lost["node without power", "replica"]),
        row("BERT-base moves live, target on its own core", live, "waited", "again"),
        row("two stages and target share two cores", shared, "pause", "again"),
        row("there: checkpoint and another pod instead", restart, "pause", "again"),
    ]
    return table(("When", "Without training", "Steps done again"), rows)


def machine() -> str:
    """What the figures were measured on."""
    rows = []
    for name in (*BENCHMARKS, *(("tenants",) if _kept("tenants") else ())):
        it = results(name)["machine"]
        rows.append((f"`{name}.json`", it["processor"] or it["machine"], it["cores"], it["python"]))
    return table(("Result file", "Processor", "Cores", "Python"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "summary": summary,
    "machine": machine,
    "pipeline": pipeline,
    "pipeline-goals": lambda: goals("pipeline"),
    "checkpoint-cost": checkpoint_cost,
    "recovery": recovery,
    "recovery-goals": lambda: goals("recovery"),
    "recovery-cluster": recovery_cluster,
    "recovery-cluster-goals": lambda: goals("recovery-cluster"),
    "recovery-memory": recovery_memory,
    "recovery-costs": recovery_costs,
    "recovery-rest": recovery_rest,
    "migration": lambda: moves("migration"),
    "migration-goals": lambda: goals("migration"),
    "migration-cluster": lambda: moves("migration-cluster"),
    "migration-cluster-goals": lambda: goals("migration-cluster"),
    "goodput": goodput,
    "replicas": replicas,
    "replica-deaths": replica_deaths,
    "replica-joins": replica_joins,
    "replicas-goals": lambda: goals("replicas"),
    "script": script,
    "script-goals": lambda: goals("script"),
    "checkpoints": checkpoints,
    "checkpoint-loads": checkpoint_loads,
    "checkpoint-goals": lambda: goals("checkpoint"),
    "operator": operator,
    "operator-goals": lambda: goals("operator"),
    "tenants": tenants,
    "tenants-goals": tenants_goals,
    "plan": plan,
    "plan-messages": plan_messages,
    "plan-goals": lambda: goals("plan"),
}


def filled(text: str) -> str:
    """``text`` with all of its tables made again. Raises KeyError for a table that is not known."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]]()}\n{block[3]}", text)


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 when ``--check`` finds a file stale."""
    check = arguments[:1] == ["--check"]
    stale = 0
    for path in map(Path, arguments[check:]):
        text = path.read_text("utf-8")
        new = filled(text)
        if new == text:
            continue
        if check:
            print(f"{path} does not have the figures of benchmarks/results: run `make figures` and commit it", file=sys.stderr)
            stale = 1
        else:
            path.write_text(new, "utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
