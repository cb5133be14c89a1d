"""Who may command an agent: a request counts if it is signed for this pod, as it is, by a key that is trusted, and once."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from signing import KEY, POD

from lmj_api.signed import LONGEST_HEADER, Credential, digest_of, parse
from lmj_operator.backend.caller import Caller
from lmj_operator.backend.signing_key import SigningKey
from lmj_trainer.agent.challenges import LONGEST_SECONDS, MOST_REQUESTS, Challenges
from lmj_trainer.agent.gate import Gate, RefusedError
from lmj_trainer.errors import UserError

JOB = "11111111-2222-3333-4444-555555555555"
OTHER = SigningKey.generate()
PATH, BODY = "/v1/view?view=3", b'{"number": 3}'


@pytest.fixture
def gate() -> Gate:
    return Gate(JOB, POD, [KEY.public])


def signed(gate: Gate, key: SigningKey = KEY, job: str = JOB, pod: str = POD, body: bytes = BODY, path: str = PATH) -> str:
    caller = Caller(key, job, pod)
    caller.heard(gate.challenge)
    return caller.authorization("PUT", path, digest_of(body))


def refuse(gate: Gate, header: str, why: str, method: str = "PUT", path: str = PATH) -> None:
    with pytest.raises(RefusedError, match=why):
        gate.admit(method, path, header)


def test_what_is_signed_counts(gate: Gate) -> None:
    gate.check(BODY, gate.admit("PUT", PATH, signed(gate)))


def test_each_request_counts_once(gate: Gate) -> None:
    header = signed(gate)
    gate.admit("PUT", PATH, header)
    refuse(gate, header, "sent before")
    assert signed(gate) != header
    gate.admit("PUT", PATH, signed(gate))


def test_it_is_of_one_pod_of_one_job(gate: Gate) -> None:
    another = Gate(JOB, "another pod", [KEY.public], gate._challenges)
    refuse(another, signed(gate), "of another request, another pod")
    refuse(gate, signed(gate, pod="another pod"), "another pod")
    refuse(gate, signed(gate, job="another job"), "another pod")


def test_it_is_of_the_connection_on_which_it_was_sent() -> None:
    """Who is between the two shows another certificate, and what is signed over that is of no use to him."""
    mine, other = digest_of(b"mine"), digest_of(b"other")
    gate = Gate(JOB, POD, [KEY.public], certificate=mine)
    caller = Caller(KEY, JOB, POD)
    caller.heard(gate.challenge)
    for certificate in ("", other):
        refuse(gate, caller.authorization("PUT", PATH, digest_of(BODY), certificate), "a connection to somebody else")
    header = caller.authorization("PUT", PATH, digest_of(BODY), mine)
    refuse(Gate(JOB, POD, [KEY.public], gate._challenges), header, "a connection to somebody else")
    assert gate.admit("PUT", PATH, header) == digest_of(BODY)


def test_a_sniffed_request_is_worth_nothing_at_a_pod_that_has_its_own_challenges(gate: Gate) -> None:
    header = signed(gate)
    refuse(Gate(JOB, POD, [KEY.public]), header, "a challenge that is over")
    gate.admit("PUT", PATH, header)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", PATH), ("PUT", "/v1/view"), ("PUT", "/v1/view?view=4"), ("PUT", "/v1/worker?view=3"), ("put", PATH)],
)
def test_it_is_of_one_method_and_path(gate: Gate, method: str, path: str) -> None:
    header = signed(gate)
    refuse(gate, header, "of another request", method, path)
    gate.admit("PUT", PATH, header)  # who tried it with something else did not use it up


def test_it_is_of_one_body(gate: Gate) -> None:
    digest = gate.admit("PUT", PATH, signed(gate))
    with pytest.raises(RefusedError, match="its body is not the one that was signed"):
        gate.check(BODY + b" ", digest)
    with pytest.raises(RefusedError, match="its body"):
        gate.check(b"", digest)


def test_another_digest_in_the_header_is_not_signed(gate: Gate) -> None:
    refuse(gate, signed(gate).replace(digest_of(BODY), digest_of(b"{}")), "of another request")


def test_keys(gate: Gate) -> None:
    refuse(gate, signed(gate, OTHER), "a key that this pod does not trust")
    forged = signed(gate, OTHER).replace(OTHER.public, KEY.public)
    refuse(gate, forged, "of another request")
    two = Gate(JOB, POD, [OTHER.public, KEY.public])
    for key in (KEY, OTHER):
        two.admit("PUT", PATH, signed(two, key))


def test_without_a_challenge_nothing_counts(gate: Gate) -> None:
    refuse(gate, Caller(KEY, JOB, POD).authorization("PUT", PATH, digest_of(BODY)), "a challenge that is over")


def changed(change: Callable[[Credential], Credential]) -> Callable[[Gate], str]:
    def header(gate: Gate) -> str:
        credential, signature = parse(signed(gate))
        return change(credential).header(signature)

    return header


@pytest.mark.parametrize(
    "change",
    [
        lambda c: replace(c, nonce="x" * 22),
        lambda c: replace(c, digest="0" * 64),
        lambda c: replace(c, key=OTHER.public),
        lambda c: replace(c, challenge="y" * 22),
    ],
)
def test_no_part_of_a_signed_header_can_be_changed(gate: Gate, change: Callable[[Credential], Credential]) -> None:
    refuse(gate, changed(change)(gate), "another request|does not trust|a challenge that is over")


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "Bearer token",
        "LMJ-Ed25519",
        "LMJ-Ed25519 ",
        "x" * (1 << 20),
        "\xff\udcff\n",
        "LMJ-Ed25519 key=,challenge=,nonce=,digest=,signature=",
        "LMJ-Ed25519 " + ",".join(["key=" + "A" * 43] * 50),
    ],
)
def test_garbage_is_refused(gate: Gate, garbage: str) -> None:
    refuse(gate, garbage, "the request is not signed")


@pytest.mark.parametrize(
    "change", [lambda h: h + ",", lambda h: " " + h, lambda h: h + "\n", lambda h: h.lower(), lambda h: h[:-1]]
)
def test_a_header_that_is_almost_one_is_refused(gate: Gate, change: Callable[[str], str]) -> None:
    header = signed(gate)
    assert len(header) < LONGEST_HEADER
    refuse(gate, change(header), "the request is not signed")
    gate.admit("PUT", PATH, header)


def test_a_path_that_is_no_text_is_refused(gate: Gate) -> None:
    for path in ("/v1/\udcff", "/v1/state\nmore"):
        refuse(gate, signed(gate), "of another request", path=path)


def test_what_could_be_read_as_two_requests_is_not_signed() -> None:
    with pytest.raises(ValueError, match="more than one line"):
        Caller(KEY, JOB, POD).authorization("PUT", "/v1/view\nx", digest_of(BODY))


def test_a_challenge_that_is_none_is_not_signed_over() -> None:
    caller = Caller(KEY, JOB, POD)
    for challenge in (None, "", "short", "x" * 65, "x" * 20 + "\n", 'a,nonce="b" ' * 2):
        caller.heard(challenge)
        assert caller.challenge == ""
    caller.heard("x" * 20)
    caller.heard("nonsense, again")
    assert caller.challenge == "x" * 20


def test_who_has_no_key_cannot_end_a_challenge_or_use_up_a_nonce(gate: Gate) -> None:
    header, before = signed(gate), gate.challenge
    nonce = parse(header)[0].nonce
    forged = Credential(KEY.public, before, nonce, digest_of(BODY))
    for number in range(3 * MOST_REQUESTS):
        with pytest.raises(RefusedError):
            gate.admit("PUT", PATH, forged.header(number.to_bytes(64, "big")))
    assert gate.challenge == before
    gate.admit("PUT", PATH, header)


@pytest.mark.parametrize("part", ["nonce", "digest", "signature"])
def test_parts_of_two_requests_make_no_third(gate: Gate, part: str) -> None:
    ours, theirs = (signed(gate, body=body).split(",") for body in (BODY, b"{}"))
    mixed = [there if here.startswith(part) else here for here, there in zip(ours, theirs, strict=True)]
    assert mixed != ours
    refuse(gate, ",".join(mixed), "of another request")


def test_a_request_that_was_held_back_counts_for_ten_minutes_at_most() -> None:
    now = [0.0]
    gate = Gate(JOB, POD, [KEY.public], Challenges(lambda: now[0]))
    late, too_late = signed(gate), signed(gate)
    now[0] = 2 * LONGEST_SECONDS - 0.1
    gate.admit("PUT", PATH, late)
    now[0] = 2 * LONGEST_SECONDS
    refuse(gate, too_late, "a challenge that is over")
    now[0] = 1e9
    refuse(gate, too_late, "a challenge that is over")
    gate.admit("PUT", PATH, signed(gate))


@pytest.mark.parametrize(
    "key",
    ["", "x", KEY.public[:-1], KEY.public + "=", KEY.public[:-1] + "+", "A" * 44],
    ids=["none", "short", "cut", "padded", "other-letters", "long"],
)
def test_what_is_no_key_is_a_users_mistake(key: str) -> None:
    with pytest.raises(UserError, match="not a public key of Ed25519"):
        Gate(JOB, POD, [KEY.public, key])
