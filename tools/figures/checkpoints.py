"""Checkpoints that are saved and loaded."""

from statistics import median

from figures.form import NONE, number, results, span, table


def checkpoints() -> str:
    """What each way to save takes."""
    details = results("checkpoint")["details"]
    rows = []
    for name in details["rounds"][0]:
        each = [took[name] for took in details["rounds"]]
        whole = median(saved["whole"] for saved in each)
        beside = [stalls[name] for stalls in details["overlapped"] if name in stalls]
        rows.append(
            (
                f"**{name}**" if name == "this project" else f"`{name}`" if "." in name else name,
                number(1000 * median(saved["stall"] for saved in each), " ms"),
                span((1000 * saved["stall"] for saved in each), " ms"),
                number(1000 * median(beside), " ms") if beside else NONE,
                number(whole, " s"),
                number(details["bytes"] / whole / 1e9, " GB/s"),
                number(median(saved["processor"] for saved in each), " s"),
            )
        )
    head = ("Way", "Stall, median", "Shortest and longest", "Beside a step", "Until it is on the disk", "Rate", "Processor time")
    return table(head, rows)


def checkpoint_loads() -> str:
    """What a checkpoint of two stages takes to be loaded into others."""
    rows = []
    for each in zip(*results("checkpoint")["details"]["loads"], strict=True):
        stages, replicas = each[0]["stages"], each[0]["replicas"]
        seconds, read = (median(load[name] for load in each) for name in ("seconds", "read"))
        rows.append((stages, replicas, number(seconds, " s"), f"{read:.3f}"))
    return table(("Stages", "Replicas", "All ranks of a replica, one after the other", "Bytes read, of those there are"), rows)
