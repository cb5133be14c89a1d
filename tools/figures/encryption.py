"""What encryption between pods costs."""

from statistics import median

from figures.form import Results, Row, number, results, table


def encryption() -> str:
    """Bytes, messages, steps and moves, without and with relays."""
    found = results("relay")["details"]
    rows = [_row(name, found) for name in ("straight", "relayed")]
    messages = [f"Tensor of {size} and its answer" for size in found["messages"][0]["straight"]]
    return table(("", "Stream", "A byte and its answer", *messages, "Step of BERT-base", "Move of BERT-base"), rows)


def _row(name: str, found: Results) -> Row:
    streams, messages = [each[name] for each in found["bytes"]], [each[name] for each in found["messages"]]
    totals = [move["total"] for turn in found["moves"] for move in turn[name]]
    return (
        "without" if name == "straight" else "through two relays",
        number(median(each["rate"] for each in streams) / 1e9, " GB/s"),
        number(1e6 * median(each["trip"] for each in streams), " µs"),
        *(number(1000 * median(each[size] for each in messages), " ms") for size in messages[0]),
        number(median(turn[name] for turn in found["steps"]), " s"),
        number(median(totals), " s"),
    )
