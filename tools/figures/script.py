"""A script of a user's own."""

from statistics import mean, median

from figures.form import grouped, number, results, span, table


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
