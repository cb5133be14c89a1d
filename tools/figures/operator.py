"""The operator."""

from statistics import median

from figures.form import Row, number, results, table


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
