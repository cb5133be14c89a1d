"""Workers, pods and nodes that were lost."""

from statistics import mean, median

from figures.form import KEPT, grouped, number, results, span, table


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


def recovery_cluster(name: str = "recovery-cluster") -> str:
    """Pods and nodes that were lost on a cluster. ``name``: of the results."""
    groups = grouped(results(name)["details"]["trials"], "fault", "kind")
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
