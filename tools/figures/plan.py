"""The plan with many ranks."""

from figures.form import number, results, table


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
