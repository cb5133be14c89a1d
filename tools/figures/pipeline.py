"""Step time of the pipeline."""

from statistics import median

from figures.form import NONE, number, results, span, table

BUSY = ("each of two single processes at once", "two single processes at once")
"""What the pipeline's benchmark calls, and called, the two busy cores."""
OURS = "this pipeline"


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
