"""Which run of a job it is."""

import pytest
from pydantic import ValidationError

from lmj_api.run import Run
from lmj_api.spec.job import Metadata

UID = "6d0f3c1a-93a5-4c5b-8c2e-0f6b7f7e2a11"


def test_it_is_the_objects_uid_and_time() -> None:
    text = f'{{"name": "tiny", "uid": "{UID}", "creationTimestamp": "2026-01-01T00:00:01Z", "labels": {{}}}}'
    run = Metadata.model_validate_json(text, strict=True).run
    assert run == Run(id=UID, begun=1767225601.0)
    assert run.short == "6d0f3c1a"


def test_a_later_run_is_told_by_its_time() -> None:
    first, second = Run(id=UID, begun=1.0), Run(id=UID.replace("6", "7"), begun=2.0)
    assert first.precedes(second)
    assert not second.precedes(first)
    assert not first.precedes(first.model_copy(update={"begun": 2.0})), "one run, told twice"
    assert not second.precedes(first.model_copy(update={"begun": 2.0})), "within one second"
    assert Metadata(name="tiny").run.precedes(first)


@pytest.mark.parametrize("uid", ["", "../../etc", "7", UID.upper(), UID + "\n"])
def test_an_id_is_safe_in_a_name(uid: str) -> None:
    with pytest.raises(ValidationError):
        Run(id=uid)
    with pytest.raises(ValidationError):
        Metadata(name="tiny", uid=uid)
