"""The same from real servers of object storage."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bucket_fixture import azblob, azblob_of_session, azfile, azfile_of_session, gs, gs_of_session, s3, s3_of_session, server
from s3_server import S3Server
from secret_folder import SecretFolder
from storage_server import StorageServer

from lmj_api.layout import Layout
from lmj_trainer.check import check
from lmj_trainer.errors import UserError
from lmj_trainer.fetched import fetch
from lmj_trainer.store.registry import open_place

__all__ = ["azblob", "azblob_of_session", "azfile", "azfile_of_session", "gs", "gs_of_session", "s3", "s3_of_session", "server"]

pytestmark = pytest.mark.integration


@pytest.fixture
def put(server: StorageServer, tmp_path: Path) -> Callable[[str, Path], str]:
    """Puts a file, or all of a folder, into a bucket, under a name; its URI."""
    place = f"{server.bucket('data')}/{tmp_path.name}"

    def to(name: str, path: Path) -> str:
        for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
            key = name if file == path else f"{name}/{file.relative_to(path).as_posix()}"
            (open_place(place.rpartition("/")[0]) / f"{tmp_path.name}/{key}").put([file.read_bytes()])
        return f"{place}/{name}"

    return to


def silent(line: str) -> None:
    pass


def test_a_job_is_checked_by_what_is_in_the_bucket_and_trains_on_that(
    job: Any, put: Callable[[str, Path], str], reviews: Path, pretrained: Path
) -> None:
    rows, model = put("a b/reviews.csv", reviews), put("models/minilm", pretrained)
    wanted = {"dataset__splits": {"validationFraction": 0.2}, "model__scratch": None}
    made = job(dataset__source=rows, model__source=model, **wanted)
    said: list[str] = []
    assert check(made, said.append) == check(job(model__source=str(pretrained), **wanted))
    assert any(line.startswith(f"fetching {rows}") for line in said)
    found = fetch(made.spec, pytest.fail)
    assert Path(found.dataset.source).read_bytes() == reviews.read_bytes()
    for file in ("config.json", "model.safetensors"):
        assert (Path(found.model.source) / file).read_bytes() == (pretrained / file).read_bytes()


def test_a_job_that_is_refused_leaves_nothing(job: Any, put: Callable[[str, Path], str], reviews: Path, tmp_path: Path) -> None:
    rows = put("reviews.csv", reviews)
    with pytest.raises(UserError, match="has no column 'reviw'; did you mean review") as raised:
        check(job(dataset__source=rows, dataset__text=["reviw"]))
    assert rows in str(raised.value)
    assert str(tmp_path / "out") not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_a_saved_dataset_comes_with_its_splits(job: Any, put: Callable[[str, Path], str], reviews: Path, tmp_path: Path) -> None:
    import datasets

    rows = datasets.load_dataset("csv", data_files=str(reviews), cache_dir=str(tmp_path / "hf"))["train"]
    datasets.DatasetDict({"train": rows, "held": rows.select(range(8))}).save_to_disk(str(tmp_path / "saved"))
    uri = put("saved", tmp_path / "saved")
    assert check(job(dataset__source=uri, dataset__splits={"validation": "held"})).rows == {"train": 40, "validation": 8}


def test_a_bucket_that_is_not_there_is_the_user_s_to_name(job: Any, server: StorageServer) -> None:
    scheme = server.bucket("data").partition("://")[0]
    with pytest.raises(UserError, match=r"^dataset.source: .*: name the bucket as it is called, and give credentials"):
        check(job(dataset__source=f"{scheme}://no-such-bucket/rows.csv"))


def test_keys_of_the_job_s_secret_read_and_wrong_ones_are_waited_for(
    job: Any, s3: S3Server, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that starts while they are being renewed is no reason to give a job up that has trained for days."""
    place = s3.bucket("data")
    (open_place(place) / "reviews.csv").put([reviews.read_bytes()])
    for name in s3.environment:
        monkeypatch.delenv(name)
    secret = SecretFolder(tmp_path / "secret", {**s3.environment, "AWS_SECRET_ACCESS_KEY": "another-secret"})
    secret.lead(monkeypatch)
    said: list[str] = []

    def hear(line: str) -> None:
        said.append(line)
        if "tries again" in line:
            secret.put(s3.environment)

    found = fetch(job(dataset__source=f"{place}/reviews.csv").spec, hear)
    assert Path(found.dataset.source).read_bytes() == reviews.read_bytes()
    (told,) = [line for line in said if "tries again" in line]
    assert told.startswith("dataset.source: s3://data/reviews.csv: SignatureDoesNotMatch: ")
    assert ": renew the Secret bucket; tries again in 1 s" in told
    assert "another-secret" not in told


def test_a_process_that_is_killed_leaves_nothing_that_is_taken_for_whole(
    job: Any, s3: S3Server, tmp_path: Path, reviews: Path
) -> None:
    place = s3.bucket("data")
    (open_place(place) / "reviews.csv").put([reviews.read_bytes()])
    made = job(dataset__source=f"{place}/reviews.csv")
    (tmp_path / "job.json").write_text(made.to_json())
    dies = (
        "import os, sys; from lmj_trainer import fetched; from lmj_trainer.check import read_job; from pathlib import Path\n"
        "fetched.publish = lambda site, folder: os.kill(os.getpid(), 9)\n"
        "fetched.fetch(read_job(Path(sys.argv[1])).spec, print)"
    )
    killed = subprocess.run([sys.executable, "-c", dies, str(tmp_path / "job.json")], env=os.environ, timeout=120)
    assert killed.returncode == -9
    left = sorted(path.name for path in Layout.of(made.spec).fetched.iterdir())
    assert [name[:7] for name in left] == [".fetchi", ".lease-"]
    said: list[str] = []
    assert Path(fetch(made.spec, said.append).dataset.source).read_bytes() == reviews.read_bytes()
    assert any("takes over" in line for line in said), "at once: its process is known to be gone"
