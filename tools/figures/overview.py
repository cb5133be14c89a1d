"""The README's table, and the machines."""

from statistics import median

from figures.form import KEPT, Results, Row, grouped, is_kept, number, results, table

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
NEW = ("tasks", "tenants", "relay", "recovery-nodes-encrypted")
"""Those of which no results need be kept yet."""


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
    for name in (*BENCHMARKS, *filter(is_kept, NEW)):
        it = results(name)["machine"]
        rows.append((f"`{name}.json`", it["processor"] or it["machine"], it["cores"], it["python"]))
    return table(("Result file", "Processor", "Cores", "Python"), rows)
