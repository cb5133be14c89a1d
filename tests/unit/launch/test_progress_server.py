"""Where scripts report, over real connections."""

import asyncio
import contextlib
import http.client
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmj_api.protocol import Progress
from lmj_trainer.launch import progress_server
from lmj_trainer.launch.progress import ReportError
from lmj_trainer.launch.progress_server import MOST_BODY, MOST_CONNECTIONS, MOST_HEAD, ProgressServer

pytestmark = pytest.mark.integration

SECONDS = 30.0
STATUS = {
    "trainerStatus": {
        "progressPercentage": 25,
        "metrics": [{"name": "current_step", "value": "5"}, {"name": "total_steps", "value": "20"}],
    }
}


async def post(
    server: ProgressServer, path: str, body: bytes, headers: dict[str, str] | None = None, method: str = "POST"
) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)


def read(path: str) -> str:
    return Path(path).read_text()


def path_of(server: ProgressServer) -> str:
    return "/" + server.environment()["LMJ_PROGRESS_URL"].split("/", 3)[3]


async def test_a_line_of_json_is_told_and_what_waits_is_told_as_it_ends() -> None:
    told: list[Progress] = []
    async with ProgressServer(told.append) as server:
        assert await post(server, path_of(server), b'{"step": 1, "steps": 9}') == (200, "")
        await until(lambda: bool(told))
        for step in range(2, 9):
            assert await post(server, path_of(server), b'{"step": %d}' % step) == (200, "")
    assert told[0] == Progress(step=1, steps=9, epoch=0.0)
    assert told[-1].step == 8


async def test_it_is_told_at_most_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_server, "LEAST_SECONDS", 3600.0)
    told: list[Progress] = []
    async with ProgressServer(told.append) as server:
        server.take_lines(b'{"step": 1}')
        await until(lambda: len(told) == 1)
        for step in range(2, 50):
            server.take_lines(b'{"step": %d}' % step)
            await asyncio.sleep(0)
        assert [at.step for at in told] == [1]
    assert [at.step for at in told] == [1, 49]


async def test_what_the_trainer_posts_is_told(tmp_path: Path) -> None:
    told: list[Progress] = []
    async with ProgressServer(told.append, folder=tmp_path) as server:
        environment = server.environment()
        path = environment["KUBEFLOW_TRAINER_SERVER_TOKEN"]
        assert os.listdir(tmp_path) == [os.path.basename(path)]
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        token = {"Authorization": f"Bearer {read(path)}"}
        body = json.dumps(STATUS).encode()
        assert await post(server, "/trainer-status", body, token) == (200, "")
        assert (await post(server, "/trainer-status", body, {"Authorization": "Bearer no"}))[0] == 401
        assert (await post(server, "/trainer-status", b"{}", token))[0] == 400
    assert [(at.step, at.steps) for at in told] == [(5, 20)]
    assert os.listdir(tmp_path) == []


async def test_a_temporary_folder_is_gone_afterwards() -> None:
    async with ProgressServer(lambda _: None) as server:
        folder = Path(server.environment()["KUBEFLOW_TRAINER_SERVER_TOKEN"]).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


async def test_a_folder_that_cannot_be_written_is_an_error_and_leaves_no_server(tmp_path: Path) -> None:
    server = ProgressServer(lambda _: None, folder=tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        await server.__aenter__()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)


async def test_what_is_refused_says_why() -> None:
    told: list[Progress] = []
    async with ProgressServer(told.append) as server:
        path = path_of(server)
        line = b'{"step": 3}'
        assert await post(server, path, b'{"step": -3}') == (
            400,
            'step: a whole number from 0 on is wanted; send {"step": 3, "steps": 100, "loss": 0.5}\n',
        )
        assert (await post(server, path + "x", line))[0] == 401
        assert (await post(server, "/progress", line))[0] == 401
        assert (await post(server, "/progress", line, {"Authorization": "Bearer \xff"}))[0] == 401
        assert (await post(server, "/other", line))[0] == 404
        assert (await post(server, path, b"", method="GET"))[0] == 405
        assert (await post(server, path, line, {"Transfer-Encoding": "chunked"}))[0] == 411
        assert (await post(server, path, line, {"Content-Length": "-1"}))[0] == 411
        assert (await post(server, path, b" " * (MOST_BODY + 1)))[0] == 413
        assert (await post(server, path, b" " * (8 * MOST_BODY)))[0] == 413
        assert (await post(server, path, b"", {"Content-Length": "9" * 400}))[0] == 413
        assert (await post(server, path, line, {"X": "x" * MOST_HEAD}))[0] == 431
        assert (await post(server, path, b" " * (MOST_BODY - 20) + b"\n" + line))[0] == 400
        assert (await post(server, path, b"\n" * (MOST_BODY - 20) + line))[0] == 200
        assert (await post(server, "/progress", b'{"step": 4}', {"Authorization": f"Bearer {path.split('/')[-1]}"}))[0] == 200
    assert told[-1].step == 4


async def test_reports_before_a_wrong_one_count() -> None:
    told: list[Progress] = []
    async with ProgressServer(told.append) as server:
        with pytest.raises(ReportError):
            server.take_lines(b'{"step": 3}\nno\n{"step": 4}')
    assert [at.step for at in told] == [3]


async def test_noise_and_silence_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_server, "REQUEST_SECONDS", 0.2)
    async with ProgressServer(lambda _: None) as server:
        for noise in (
            b"",
            b"\x16\x03\x01\r\n\r\n",
            b"POST\r\n\r\n",
            b"POST /progress HTTP/1.1\r\nContent-Length: 5\r\n",
            b"\0" * 100_000,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(noise)
            async with asyncio.timeout(SECONDS):
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
            writer.close()
        assert (await post(server, path_of(server), b'{"step": 3}'))[0] == 200


async def test_one_connection_too_many_is_closed_and_the_others_go_on() -> None:
    async with ProgressServer(lambda _: None) as server:
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MOST_CONNECTIONS)]
        await until(lambda: len(server._connections) == MOST_CONNECTIONS)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        held[0][1].close()
        await until(lambda: len(server._connections) == MOST_CONNECTIONS - 1)
        assert (await post(server, path_of(server), b'{"step": 3}'))[0] == 200
    for _, each in held[1:]:
        each.close()


async def test_it_starts_no_thread() -> None:
    before = threading.active_count()
    async with ProgressServer(lambda _: None) as server:
        body = b'{"step": 3}'
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"POST {path_of(server)} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(SECONDS):
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()
        assert threading.active_count() == before


async def test_one_of_an_older_view_is_not_heard() -> None:
    async with ProgressServer(lambda _: None) as old:
        path = path_of(old)
    async with ProgressServer(lambda _: None) as new:
        assert (await post(new, path, b'{"step": 3}'))[0] == 401


async def test_a_proxy_is_not_asked() -> None:
    async with ProgressServer(lambda _: None) as server:

        def exempt(**given: str) -> tuple[str | None, str | None]:
            variables = server.environment(given)
            return variables.get("no_proxy"), variables.get("NO_PROXY")

        assert exempt(no_proxy="a") == (None, None)
        assert exempt(http_proxy="http://p") == ("127.0.0.1", "127.0.0.1")
        assert exempt(HTTP_PROXY="http://p", NO_PROXY="a,b") == ("a,b,127.0.0.1", "a,b,127.0.0.1")
        assert exempt(all_proxy="http://p", NO_PROXY="a", no_proxy="*") == ("*", "a,127.0.0.1")


TRAINER = """
import sys, torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
data = [{"input_ids": [1, 2, 3, i % 9], "labels": i % 2} for i in range(16)]
arguments = TrainingArguments(sys.argv[1], max_steps=6, per_device_train_batch_size=4, logging_steps=1, save_strategy="no", use_cpu=True)
Trainer(BertForSequenceClassification(config), arguments, train_dataset=data).train()
"""
QUICK = "from transformers.integrations import KubeflowCallback\nKubeflowCallback._MIN_UPDATE_INTERVAL = 0.0\n"
"""Posts each step, and not every five seconds."""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["as it is", "each step", "a proxy"])
async def test_a_trainer_reports_by_itself(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_server, "LEAST_SECONDS", 0.0)
    told: list[Progress] = []
    script = tmp_path / "train.py"
    script.write_text((QUICK if how == "each step" else "") + TRAINER)
    given: dict[str, Any] = dict(os.environ) | ({"http_proxy": "http://127.0.0.1:9"} if how == "a proxy" else {})
    async with ProgressServer(told.append) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            script,
            tmp_path / "out",
            env=given | server.environment(given),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(200):
            _, stderr = await process.communicate()
        assert process.returncode == 0, stderr.decode()
    assert {at.steps for at in told} == {6}
    first, last = told[0], told[-1]
    assert first.step == 0
    assert (last.step, last.epoch, last.eta_seconds) == (6, 1.5, 0.0)
    assert last.loss is not None
    assert 0.1 < last.loss < 3
    assert last.learning_rate is not None
    assert last.grad_norm is not None
    steps = [at.step for at in told]
    assert steps == sorted(steps)
    assert how != "each step" or set(steps) == set(range(7))
