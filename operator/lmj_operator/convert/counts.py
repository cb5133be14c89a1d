"""How many pods a job has, and how many processes run in each."""

from typing import Final

from lmj_operator.convert.fields import Object
from lmj_operator.convert.launcher import Launch
from lmj_operator.convert.notes import Notes
from lmj_operator.convert.source import Source

_MOST_PROCESSES: Final = 64


def replicas(source: Source, launch: Launch | None, notes: Notes) -> Object:
    """``dataParallel`` of the job."""
    least, most, count = source.least, source.most, source.replicas
    nodes = launch.nodes if launch is not None else None
    numbers = [int(part) for part in nodes.split(":")] if nodes is not None and nodes.replace(":", "", 1).isdecimal() else []
    if nodes is not None and ":" in nodes and len(numbers) == 2 and least is None and most is None:
        least, most = max(min(numbers[0], count), 1), max(numbers[1], count)
    elif len(numbers) == 1 and numbers[0] != count:
        notes.changed("nnodes of the command", f"{numbers[0]}, where the job has {count} pods: it is {count}")
    parts: Object = {"replicas": count, "minReplicas": count if least is None else least}
    return parts if most is None else {**parts, "maxReplicas": most}


def processes(source: Source, launch: Launch | None, gpus: int, notes: Notes) -> int:
    """Processes of each pod, for a container that may use ``gpus``."""
    where = "spec.command.processesPerNode"
    if launch is not None and launch.launcher == "accelerate launch":
        if launch.total is not None and launch.total.isdecimal() and int(launch.total) > 0:
            return _bounded(max(int(launch.total) // source.replicas, 1), notes, where)
        return _bounded(gpus or 1, notes, where)
    if launch is None or launch.launcher is None:
        if source.processes not in (None, "auto", "cpu", "gpu", "1"):
            notes.check(
                where,
                f"the script is started without torchrun, so once in each pod, but {source.processes} processes are asked for",
            )
        return 1
    told = launch.processes if launch.processes is not None and not launch.processes.startswith("$") else source.processes
    if told is None or told in ("auto", "gpu", "cpu", "xpu"):
        if gpus and told != "cpu":
            return _bounded(gpus, notes, where)
        if told is not None:
            notes.check(where, f"{told} would start one process for each processor of a node: it is 1 here")
        return 1
    if told.isdecimal() and int(told) > 0:
        return _bounded(int(told), notes, where)
    notes.fill_in(where, f"{told!r} is no number of processes: it is 1 here")
    return 1


def _bounded(count: int, notes: Notes, where: str) -> int:
    if count > _MOST_PROCESSES:
        notes.changed(where, f"{count} is more than the {_MOST_PROCESSES} that are allowed: it is {_MOST_PROCESSES}")
    return min(count, _MOST_PROCESSES)
