"""The operator's process: its HTTP, its logs, its options."""

import gc
import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import pytest

from lmj_api.status import Phase
from lmj_operator.backend.kubernetes.resources import JOBS, PODS
from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.backend.kubernetes.status_store import Replicas
from lmj_operator.cli.errors import CommandError
from lmj_operator.cli.operator import operator
from lmj_operator.controller import operator as module
from lmj_operator.controller.http import listen
from lmj_operator.controller.logs import JsonFormatter, TextFormatter
from lmj_operator.controller.metrics import Metrics
from lmj_operator.controller.operator import Options, StartError, kopf_settings, operate


async def test_metrics_health_and_readiness_are_served() -> None:
    metrics = Metrics(lambda: [Phase.RUNNING, Phase.RUNNING, Phase.FAILED], lambda: [("team", "tiny", Replicas(2, 4, 1))])
    metrics.count_call("create", "pods", 201)
    missing = ["does not watch pods yet: 403", "does not watch nodes yet: 403"]
    runner = await listen("127.0.0.1", 0, metrics, lambda: missing)
    port = runner.addresses[0][1]
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                assert await answer.text() == "ok\n"
            async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                assert (answer.status, await answer.text()) == (
                    503,
                    "does not watch pods yet: 403\ndoes not watch nodes yet: 403\n",
                )
            missing.clear()
            async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                assert (answer.status, await answer.text()) == (200, "ok\n")
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                text = await answer.text()
    finally:
        await runner.cleanup()
    assert 'lmj_jobs{phase="Running"} 2.0' in text
    for name, count in (("", 2), ("_wanted", 4), ("_joining", 1)):
        assert f'lmj_job_replicas{name}{{name="tiny",namespace="team"}} {count}.0' in text
    assert 'lmj_api_calls_total{code="201",resource="pods",verb="create"} 1.0' in text


def record(**extra: object) -> logging.LogRecord:
    made = logging.LogRecord("lmj_operator.x", logging.WARNING, "", 0, "%s happened", ("it",), None)
    made.__dict__.update(extra)
    return made


def test_logs_name_the_job() -> None:
    line = json.loads(JsonFormatter().format(record(job=("team", "tiny"))))
    assert {key: line[key] for key in ("level", "logger", "message", "namespace", "job")} == {
        "level": "warning",
        "logger": "lmj_operator.x",
        "message": "it happened",
        "namespace": "team",
        "job": "tiny",
    }
    text = TextFormatter("%(levelname)s - %(message)s")
    assert text.format(record(job=("team", "tiny"))) == "WARNING team/tiny: it happened"
    assert text.format(record()) == "WARNING it happened"


def test_kopf_adds_nothing_to_objects_under_its_own_name() -> None:
    settings = kopf_settings()
    assert settings.persistence.finalizer == "lmj.dev/operator"
    assert not settings.posting.enabled
    assert settings.watching.server_timeout < settings.watching.client_timeout


async def test_it_starts_under_a_user_id_that_has_no_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def found() -> None:
        return

    monkeypatch.setattr(module, "_find_cluster", found)
    for setting in ("freeze", "set_threshold"):
        monkeypatch.setattr(gc, setting, lambda *_: None)
    told: dict[str, Any] = {}

    async def run(**options: Any) -> None:
        told.update(options)

    monkeypatch.setattr(kopf, "operator", run)
    monkeypatch.setattr(module.Served, "wait", lambda self: found())
    await operate(Options((), ("127.0.0.1", 0), tmp_path, Settings()))
    assert told["identity"], "Kopf would ask for the user's name"
    assert told["clusterwide"]


async def test_in_a_cluster_it_does_not_start_without_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def found() -> None:
        return

    monkeypatch.setattr(module, "_find_cluster", found)
    with pytest.raises(StartError, match=r"no key \(\*\.pem\) is there"):
        await operate(Options((), ("127.0.0.1", 0), tmp_path, Settings(namespace="lmj-system")))


def test_paths_of_the_api() -> None:
    assert JOBS.path("team", "tiny", "status") == "/apis/lmj.dev/v1alpha1/namespaces/team/livemigrationjobs/tiny/status"
    assert PODS.path("team") == "/api/v1/namespaces/team/pods"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"listen": "8080"}, "--listen 8080: write HOST:PORT, as in 0.0.0.0:8080"),
        ({"log_format": "xml"}, "--log-format xml: use text or json"),
        ({"log_level": "loud"}, "--log-level loud: use debug, info or warning"),
        ({"own_label": ["x"]}, "--own-label x: write KEY=VALUE"),
        (
            {"own_namespace": "lmj-system"},
            "--agent-keys is needed in a cluster: the folder where the Secret with the operator's keys is mounted",
        ),
    ],
)
def test_a_wrong_option_is_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(CommandError) as caught:
        operator(**options)
    assert (caught.value.lines, caught.value.code) == ((said,), 2)
