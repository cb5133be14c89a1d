"""``lmj migrate``: moves ranks of a job on this machine into other processes, while it trains."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmj_operator.cli.options import Output, OutputOption, SetOption

if TYPE_CHECKING:
    from lmj_api.status import JobStatus
    from lmj_operator.backend.local.store import RunStore

_LOOK_SECONDS = 0.1
_LONGEST_SECONDS = 3600.0
"""The job gives a move up by itself; this is for a run that does not look any more."""


def migrate(
    target: Annotated[Path, typer.Argument(help="The job's file, or its output folder.", metavar="FILE|DIR")] = Path(),
    rank: Annotated[list[int] | None, typer.Option("--rank", help="A rank to move; may be given again. Without it: all.")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="NODE", help="On a cluster only: see above.")] = None,
    sets: SetOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Move ranks of the running job of FILE, or with the output folder DIR, into new processes while training goes on.

    On a cluster: kubectl annotate lmj JOB "lmj.dev/migrate=0,1 to=NODE $(date +%s)" --overwrite, where to=NODE may be left out.
    """
    from lmj_api.layout import Layout
    from lmj_operator.backend.local.lock import lock_holder
    from lmj_operator.backend.local.store import RunStore
    from lmj_operator.cli.errors import FAILED, CommandError
    from lmj_operator.cli.load import read_job

    if to is not None:
        ask = f'kubectl annotate lmj JOB "lmj.dev/migrate={",".join(map(str, rank or [0]))} to={to} $(date +%s)" --overwrite'
        raise CommandError(f"--to {to}: a job on this machine has no other node to move to; for one on a cluster: {ask}")
    folder = target / ".lmj" if target.is_dir() else Layout.of(read_job(target, list(sets or ())).spec).run
    store = RunStore(folder)
    before = _status(store)
    if before is None or lock_holder(store.lock_file) is None:
        raise CommandError(f"{folder.parent}: no job runs here: start it with lmj run", code=FAILED)
    ranks = sorted(set(rank)) if rank else [r.rank for r in before.ranks]
    wrong = [r for r in ranks if not 0 <= r < len(before.ranks)]
    if wrong:
        raise CommandError(f"the job has no rank {wrong[0]}: its ranks are 0 to {len(before.ranks) - 1}")
    store.write_request(f"{','.join(map(str, ranks))} {time.time_ns()}")
    after = _wait(store, before, ranks, output)
    if output is Output.JSON:
        moved = [i.model_dump(mode="json", by_alias=True) for i in after.incidents if i not in before.incidents]
        typer.echo(json.dumps({"migrations": after.migrations - before.migrations, "incidents": moved}, ensure_ascii=False))


def _wait(store: "RunStore", before: "JobStatus", ranks: list[int], output: Output) -> "JobStatus":
    """The status once all of ``ranks`` have moved, and trained on. Raises CommandError when one does not."""
    from lmj_operator.backend.local.lock import lock_holder
    from lmj_operator.cli.errors import FAILED, CommandError
    from lmj_operator.cli.lines import changes

    limit = time.monotonic() + _LONGEST_SECONDS
    seen, asked = before, store.read_request()
    while True:
        now = _status(store) or seen
        lines = [*_states(seen, now), *changes(seen, now)]
        if output is Output.TEXT:
            for line in lines:
                typer.echo(line)
        seen = now
        fresh = [i for i in now.incidents if i not in before.incidents and i.kind == "Moved"]
        if now.migrations >= before.migrations + len(ranks) and all(i.seconds is not None for i in fresh):
            return now
        if now.move_request == asked and now.move_refused is not None:
            raise CommandError(now.move_refused, code=FAILED)
        failed = next((m for m in now.moves if m.rank in ranks and m.given_up is not None), None)
        if failed is not None and now.move_request == asked:
            raise CommandError(f"rank {failed.rank}: {failed.given_up}", code=FAILED)
        if lock_holder(store.lock_file) is None:
            raise CommandError("the run ended before all ranks had moved", code=FAILED)
        if time.monotonic() > limit:
            raise CommandError("nothing came of it within an hour: is the run stopped?", code=FAILED)
        time.sleep(_LOOK_SECONDS)


def _states(before: "JobStatus", after: "JobStatus") -> list[str]:
    """Lines for followers that came further."""
    known = {(f.rank, f.serial): f.state for f in before.followers}
    return [f"rank {f.rank}: {f.pod} is {f.state.lower()}" for f in after.followers if known.get((f.rank, f.serial)) != f.state]


def _status(store: "RunStore") -> "JobStatus | None":
    from lmj_operator.backend.local.store import StoreError
    from lmj_operator.cli.errors import CommandError

    try:
        return store.read_status()
    except StoreError as error:
        raise CommandError(str(error)) from error
