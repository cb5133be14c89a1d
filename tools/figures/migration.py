"""Ranks that moved."""

from statistics import median

from figures.form import NONE, grouped, number, results, span, table


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
