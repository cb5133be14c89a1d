"""``lmj validate``: check a job without running it."""

import json

import typer

from lmj_operator.cli.options import JobFile, Output, OutputOption, SetOption


def validate(file: JobFile, sets: SetOption = None, output: OutputOption = Output.TEXT) -> None:
    """Check the job in FILE: its fields, its data and its model. Starts nothing, writes nothing."""
    import asyncio

    from lmj_operator.cli.errors import CommandError
    from lmj_operator.cli.load import check_output, read_job
    from lmj_operator.cli.notices import without_effect
    from lmj_operator.cli.trainer import WARNING, check_job

    said: list[str] = []
    try:
        job = read_job(file, list(sets or ()))
        check_output(job)
        facts = asyncio.run(check_job(job, lambda line: said.append(line) if line.startswith(WARNING) else None, forget=True))
    except CommandError as error:
        if output is Output.JSON:
            typer.echo(json.dumps({"valid": False, "errors": list(error.lines)}, ensure_ascii=False))
        raise
    notice = without_effect(job.spec)
    notices = ([notice] if notice is not None else []) + said
    if output is Output.JSON:
        value = {"valid": True, "name": job.metadata.name, "notices": notices, "check": facts.splitlines()}
        typer.echo(json.dumps(value, ensure_ascii=False))
        return
    for line in notices:
        typer.echo(f"{file}: {line}")
    if facts:
        typer.echo(facts)
    typer.echo(f"{file}: valid")
