"""A job as the API server has it, made ready to run in pods."""

from cluster_jobs import job


def test_jobs_that_are_alike_share_what_is_equal_in_their_specs() -> None:
    first, second = job(), job(training={"batchSize": 8})
    assert second.spec.recovery is first.spec.recovery
    assert second.spec.model is first.spec.model
    assert first.spec.training.batch_size == 4
    assert second.spec.training.batch_size == 8


def test_a_section_that_nobody_has_any_more_is_let_go() -> None:
    from lmj_operator.backend.kubernetes import cluster_job as module

    made = job(training={"batchSize": 12})
    mine = [key for key, section in module._sections.items() if section is made.spec.training]
    assert len(mine) == 1
    del made
    assert mine[0] not in module._sections


def test_threads_that_are_not_set_are_settled_for_all_pods_whatever_their_template_says() -> None:
    container = {"name": "trainer", "resources": {"requests": {"cpu": "8"}, "limits": {"cpu": "8"}}}
    assert job().spec.training.threads == 1
    assert job(template={"spec": {"containers": [container]}}).spec.training.threads == 1
    assert job(training={"threads": 6}).spec.training.threads == 6
