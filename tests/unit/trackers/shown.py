"""What a tracker shows, read with its own means, in a process of its own: ``python shown.py KIND PLACE RUN`` prints it as JSON.

``{"metrics": {name: [[step, value], ...]}, "parameters": {name: value}, "notes": [text], "runs": number}``.
"""

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Shown = dict[str, Any]


def of_mlflow(uri: str, run: str) -> Shown:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiments = [e.experiment_id for e in client.search_experiments()]
    found = client.search_runs(experiments, f"tags.`lmj.run` = '{run}'")
    data = found[0].data
    metrics = {}
    for name in data.metrics:
        history = client.get_metric_history(found[0].info.run_id, name)
        metrics[name] = sorted([m.step, m.value] for m in history)
    notes = [value for name, value in sorted(data.tags.items()) if name.startswith("lmj.view.")]
    return {"metrics": metrics, "parameters": data.params, "notes": notes, "runs": len(found), "state": found[0].info.status}


def of_wandb(folder: str, run: str) -> Shown:
    from wandb.proto import wandb_internal_pb2

    metrics: dict[str, list[list[float]]] = {}
    parameters: dict[str, str] = {}
    notes: dict[str, str] = {}
    ids = set()
    for file in sorted(Path(folder).glob("wandb/offline-run-*/*.wandb")):
        for content in _wandb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(content)
            ids |= {record.run.run_id} if record.HasField("run") else set()
            for part in (record.run.config, record.config):
                parameters |= {item.key: json.loads(item.value_json) for item in part.update if item.key != "_wandb"}
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for name, value in row.items():
                if not name.startswith("_") and name != "step":
                    metrics.setdefault(name, []).append([row["step"], value])
            for item in record.summary.update:
                if (item.key or item.nested_key[0]).startswith("view "):
                    notes[item.key or item.nested_key[0]] = json.loads(item.value_json)
    assert ids == {run}
    return {"metrics": metrics, "parameters": parameters, "notes": [notes[n] for n in sorted(notes)], "runs": len(ids)}


def _wandb_records(content: bytes) -> Iterator[bytes]:
    """Of a file of W&B's: a header, then LevelDB's log format."""
    at, block, parts = 7, 32768, b""
    while at + 7 <= len(content):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        parts += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield parts
            parts = b""


def of_trackio(folder: str, run: str) -> Shown:
    os.environ["TRACKIO_DIR"] = str(Path(folder) / "trackio")
    from trackio.sqlite_storage import SQLiteStorage

    project = "proof"
    (name,) = [n for n in SQLiteStorage.get_runs(project) if n.endswith(run[:8])]
    metrics: dict[str, list[list[float]]] = {}
    for row in SQLiteStorage.get_logs(project, name):
        for key, value in row.items():
            if "/" in key:
                metrics.setdefault(key, []).append([row["step"], value])
    config = SQLiteStorage.get_run_config(project, name) or {}
    notes = sorted(alert["text"] for alert in SQLiteStorage.get_alerts(project, name))
    return {"metrics": metrics, "parameters": config, "notes": notes, "runs": len(SQLiteStorage.get_runs(project))}


if __name__ == "__main__":
    read = {"MLflow": of_mlflow, "WandB": of_wandb, "Trackio": of_trackio}[sys.argv[1]]
    print(json.dumps(read(sys.argv[2], sys.argv[3])))
