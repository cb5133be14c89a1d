"""Names of pods, there and back."""

import pytest

from lmj_api.names import parse_pod_name, pod_name, standby_name


@pytest.mark.parametrize("job", ["a", "my-job", "job-s", "job-s-1", "job-r0-1"])
def test_names_come_back(job: str) -> None:
    assert parse_pod_name(pod_name(job, 12, 3)) == (job, 12, 3)
    assert parse_pod_name(standby_name(job, 4)) == (job, None, 4)


@pytest.mark.parametrize("name", ["", "a", "a-1", "a-x-1", "-s-1", "a-r1-x", "a-s-", "a-rx-1"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"not the name of a trainer pod|invalid literal"):
        parse_pod_name(name)
