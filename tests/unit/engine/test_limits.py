"""The limits of a worker's process."""

import resource

import pytest

from lmj_trainer import limits

MANY = 2 * limits.MOST_FILES


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((256, 512), (512, 512)),
        ((256, MANY), (limits.MOST_FILES, MANY)),
        ((MANY, MANY), (MANY, MANY)),
        ((256, resource.RLIM_INFINITY), (limits.MOST_FILES, resource.RLIM_INFINITY)),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)),
    ],
)
def test_a_worker_may_have_the_files_that_its_links_need(
    before: tuple[int, int], after: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [before]
    monkeypatch.setattr(resource, "getrlimit", lambda what: now[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda what, new: now.append(new))
    limits.allow_files()
    assert now[-1] == after
