"""A tenant beside hostile ones."""

from figures.form import Row, number, results, table


def tenants() -> str:
    """Another tenant's jobs beside hostile ones."""
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
