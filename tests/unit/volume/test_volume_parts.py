"""The parts of the commands about volumes that ask nobody."""

import os
import socket
from typing import Any

import pytest

from lmj_api.problems import SpecError
from lmj_operator.cli.volume.progress import size_text, summary
from lmj_operator.client.volume import starting
from lmj_operator.client.volume.exec import exit_code
from lmj_operator.client.volume.far.frames import Frames, packed
from lmj_operator.client.volume.far.tree import shown
from lmj_operator.client.volume.image import of_operator, of_pods
from lmj_operator.client.volume.maker import left_over, this_process
from lmj_operator.client.volume.manifest import MADE_BY, Wanted, build
from lmj_operator.client.volume.shell import words
from lmj_operator.client.volume.transfer import Tally
from lmj_operator.client.volume.trouble import VolumeError
from lmj_operator.client.volume.uri import Place, WrongUri, parse


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("pvc://reviews", Place("reviews", "", True)),
        ("pvc://reviews/", Place("reviews", "", True)),
        ("pvc://reviews/a", Place("reviews", "a")),
        ("pvc://reviews/a b/c/", Place("reviews", "a b/c", True)),
        ("pvc://my.claim-1/a?b%20#c", Place("my.claim-1", "a?b%20#c")),
    ],
)
def test_places(text: str, place: Place) -> None:
    assert parse(text) == place


@pytest.mark.parametrize(
    "text",
    [
        "reviews/a",
        "s3://a/b",
        "pvc:/a/b",
        "pvc://",
        "pvc:///a",
        "pvc://Reviews/a",
        "pvc://a_b",
        "pvc://a//b",
        "pvc://a/../b",
        "pvc://a/b/..",
    ],
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(WrongUri) as error:
        parse(text)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_a_name_is_shown_in_one_line() -> None:
    assert [shown(name) for name in ("a b", "ä", "a\nb", "\x1b[2J", os.fsdecode(b"\xff"))] == [
        "a b",
        "ä",
        "a\\nb",
        "\\x1b[2J",
        "\\\\udcff",
    ]


def test_messages_come_out_as_they_went_in_however_they_are_cut() -> None:
    messages = [({"op": "a"}, b""), ({"op": "data"}, b"\n{}\n" * 100), ({"op": "look", "path": os.fsdecode(b"\n\xff")}, b"")]
    stream = b"".join(packed(header, data) for header, data in messages)
    frames, found = Frames(), []
    for at in range(0, len(stream), 7):
        found += frames.fed(stream[at : at + 7])
    assert [({key: value for key, value in header.items() if key != "bytes"}, data) for header, data in found] == messages


def wanted(**how: Any) -> Wanted:
    return Wanted("reviews", "team", "trainer:1", **how)


def test_the_pod_is_restricted_and_has_an_end() -> None:
    pod = build(wanted(), "lmj-volume-1", "me")
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    assert pod["metadata"]["annotations"] == {MADE_BY: "me"}
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"], spec["automountServiceAccountToken"]) == ("Never", 86400, False)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["image"] == "trainer:1"
    assert spec["volumes"][0] == {"name": "volume", "persistentVolumeClaim": {"claimName": "reviews"}}
    assert container["volumeMounts"][0] == {"name": "volume", "mountPath": "/volume"}
    read = build(wanted(read_only=True), "lmj-volume-1", "me")
    assert read["spec"]["containers"][0]["volumeMounts"][0]["readOnly"] is True


def test_a_template_is_merged_over_the_pod_and_cannot_take_its_end_away() -> None:
    template = {
        "metadata": {"labels": {"team": "a", "lmj.dev/helper": "none"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "activeDeadlineSeconds": 10**9,
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "containers": [
                {"name": "trainer", "image": "mine", "env": [{"name": "A", "value": "1"}]},
                {"name": "proxy", "image": "p"},
            ],
        },
    }
    pod = build(wanted(template=template), "lmj-volume-1", "me")
    assert pod["metadata"]["labels"] == {"team": "a", "lmj.dev/helper": "volume"}
    assert pod["spec"]["activeDeadlineSeconds"] == 86400
    assert (pod["spec"]["nodeSelector"], len(pod["spec"]["tolerations"])) == ({"disk": "ssd"}, 1)
    assert [container["name"] for container in pod["spec"]["containers"]] == ["trainer", "proxy"]
    with pytest.raises(SpecError, match="containers"):
        build(wanted(template={"spec": {"containers": [{"name": "main"}]}}), "a", "me")


def test_what_an_earlier_command_left_is_known() -> None:
    def pod(made_by: str | None, phase: str = "Running") -> dict[str, Any]:
        annotations = {} if made_by is None else {MADE_BY: made_by}
        return {"metadata": {"annotations": annotations}, "status": {"phase": phase}}

    mine = this_process()
    machine = mine.rpartition("/")[0]
    assert socket.gethostname() in machine
    gone, ended = pod(f"{machine}/4194305"), pod("other/1/2", "Succeeded")
    stays = [pod(mine), pod("other/1/4194305"), pod(f"{machine}/1"), pod(None), pod(f"{machine}/no")]
    assert left_over([gone, ended, *stays]) == [gone, ended]


def test_what_keeps_a_pod() -> None:
    def pod(**status: Any) -> dict[str, Any]:
        return {"metadata": {}, "spec": {"containers": [{"name": "trainer", "image": "a:1"}]}, "status": status}

    def waiting(reason: str, message: str = "") -> dict[str, Any]:
        state = {"waiting": {"reason": reason, "message": message}}
        return pod(containerStatuses=[{"name": "trainer", "state": state}])

    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes\nare available"}
    assert starting.waits_for(pod(conditions=[unschedulable])) == "Unschedulable: 0/3 nodes are available"
    assert starting.waits_for(waiting("ImagePullBackOff")) == "ImagePullBackOff: image a:1"
    assert starting.waits_for(waiting("ContainerCreating")) is None
    assert starting.has_ended(waiting("ImagePullBackOff", "later")) is None
    assert starting.has_ended(waiting("InvalidImageName", "no name")) == "InvalidImageName: no name"
    assert starting.has_ended(pod(phase="Failed", reason="Evicted", message="disk")) == "it ended at once: Evicted disk"
    running = pod(containerStatuses=[{"name": "trainer", "state": {"running": {"startedAt": "now"}}}])
    assert starting.has_started(running)
    events = [
        {"type": "Warning", "reason": "Old", "message": "a", "lastTimestamp": "2026-01-01T00:00:00Z"},
        {"type": "Warning", "reason": "FailedMount", "message": "no\nsuch share", "lastTimestamp": "2026-01-02T00:00:00Z"},
        {"type": "Normal", "reason": "Pulled", "lastTimestamp": "2026-01-03T00:00:00Z"},
    ]
    assert starting.warned(events) == "FailedMount: no such share"


def test_claims_that_cannot_be_used() -> None:
    def trouble(claim: dict[str, Any] | None, write: bool = True) -> str | None:
        return starting.claim_trouble(claim, "reviews", "team", write=write)

    claim: dict[str, Any] = {"metadata": {}, "spec": {"accessModes": ["ReadOnlyMany"]}, "status": {"phase": "Bound"}}
    assert "kubectl get pvc -n team" in str(trouble(None))
    assert "ReadOnlyMany" in str(trouble(claim))
    assert trouble(claim, write=False) is None
    assert "lost" in str(trouble({**claim, "status": {"phase": "Lost"}}, write=False))
    assert trouble({**claim, "spec": {"accessModes": ["ReadOnlyMany", "ReadWriteMany"]}}) is None


def test_the_image_of_trainers_or_of_the_operator() -> None:
    def pod(image: str, made: str) -> dict[str, Any]:
        return {"metadata": {"creationTimestamp": made}, "spec": {"containers": [{"name": "trainer", "image": image}]}}

    assert of_pods([pod("new", "2026-02-01T00:00:00Z"), pod("old", "2026-01-01T00:00:00Z")]) == "new"
    assert of_pods([]) is None

    def deployment(**container: Any) -> dict[str, Any]:
        return {"spec": {"template": {"spec": {"containers": [container]}}}}

    assert of_operator([deployment(), deployment(args=["operator", "--trainer-image=a:1"])]) == "a:1"
    assert of_operator([deployment(command=["lmj", "operator", "--trainer-image", "b:1"])]) == "b:1"
    assert of_operator([deployment(env=[{"name": "LMJ_TRAINER_IMAGE", "value": "c:1"}])]) == "c:1"
    assert of_operator([]) is None


def test_the_exit_code_of_a_command() -> None:
    assert exit_code({"status": "Success"}) == 0
    causes = [{"reason": "ExitCode", "message": "3"}]
    assert exit_code({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}) == 3
    with pytest.raises(VolumeError, match='not started in the pod: exec: "python": not found'):
        exit_code({"status": "Failure", "message": 'exec: "python":\nnot found'})


def test_a_command_is_never_read_by_a_shell() -> None:
    assert words(Place("a", "x; rm -rf ~"), ["ls", "$HOME"])[2:] == [
        'cd -- "$0" && exec "$@"',
        "/volume/x; rm -rf ~",
        "ls",
        "$HOME",
    ]


def test_the_summary() -> None:
    tally = Tally(sent=2, there=1, bytes_sent=1_500_000, links=3)
    assert summary("uploaded", tally, "to pvc://a/b", 2.0) == (
        "uploaded 2 files (1.5 MB) to pvc://a/b in 2.0 s, 1 file there already, 3 links left out"
    )
    assert [size_text(size) for size in (0, 999, 1000, 10**13)] == ["0 B", "999 B", "1.0 kB", "10.0 TB"]
