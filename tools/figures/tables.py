"""All tables, by the name that a paper has them under."""

import re
from collections.abc import Callable
from functools import partial

from figures.checkpoints import checkpoint_loads, checkpoints
from figures.encryption import encryption
from figures.form import goals, when_kept
from figures.migration import goodput, moves
from figures.operator import operator
from figures.overview import machine, summary
from figures.pipeline import checkpoint_cost, pipeline
from figures.plan import plan, plan_messages
from figures.recovery import recovery, recovery_cluster, recovery_costs, recovery_memory, recovery_rest
from figures.replicas import replica_deaths, replica_joins, replicas
from figures.script import script
from figures.tasks import tasks
from figures.tenants import tenants

BLOCK = re.compile(r"(<!-- figures: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NODES = "recovery-nodes-encrypted"
TABLES: dict[str, Callable[[], str]] = {
    "summary": summary,
    "machine": machine,
    "pipeline": pipeline,
    "pipeline-goals": partial(goals, "pipeline"),
    "checkpoint-cost": checkpoint_cost,
    "recovery": recovery,
    "recovery-goals": partial(goals, "recovery"),
    "recovery-cluster": recovery_cluster,
    "recovery-cluster-goals": partial(goals, "recovery-cluster"),
    "recovery-memory": recovery_memory,
    "recovery-costs": recovery_costs,
    "recovery-rest": recovery_rest,
    "migration": partial(moves, "migration"),
    "migration-goals": partial(goals, "migration"),
    "migration-cluster": partial(moves, "migration-cluster"),
    "migration-cluster-goals": partial(goals, "migration-cluster"),
    "goodput": goodput,
    "replicas": replicas,
    "replica-deaths": replica_deaths,
    "replica-joins": replica_joins,
    "replicas-goals": partial(goals, "replicas"),
    "script": script,
    "script-goals": partial(goals, "script"),
    "tasks": when_kept("tasks", tasks),
    "tasks-goals": when_kept("tasks", partial(goals, "tasks")),
    "checkpoints": checkpoints,
    "checkpoint-loads": checkpoint_loads,
    "checkpoint-goals": partial(goals, "checkpoint"),
    "operator": operator,
    "operator-goals": partial(goals, "operator"),
    "tenants": when_kept("tenants", tenants),
    "tenants-goals": when_kept("tenants", partial(goals, "tenants")),
    "encryption": when_kept("relay", encryption),
    "encryption-goals": when_kept("relay", partial(goals, "relay")),
    "encrypted-nodes": when_kept(NODES, partial(recovery_cluster, NODES)),
    "encrypted-nodes-goals": when_kept(NODES, partial(goals, NODES)),
    "plan": plan,
    "plan-messages": plan_messages,
    "plan-goals": partial(goals, "plan"),
}


def filled(text: str) -> str:
    """``text`` with all of its tables made again. Raises KeyError for a table that is not known."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]]()}\n{block[3]}", text)
