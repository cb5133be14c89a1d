"""Replicas that share a step."""

from statistics import median

from figures.form import NONE, number, results, span, table


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
