"""Public keys that may say who somebody is."""

import pytest

from lmj_api.signed import decoded, encoded, is_public_key

PRIME = 2**255 - 19
EIGHTH = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
"""Of two points of order 8; the other two have the opposite."""


def written(y: int, sign: int = 0) -> str:
    return encoded((y | sign << 255).to_bytes(32, "little"))


def test_an_honest_key_does() -> None:
    # The first of RFC 8032's examples.
    assert is_public_key(encoded(bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")))
    assert is_public_key(written(3))


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("y", [0, 1, PRIME - 1, EIGHTH, PRIME - EIGHTH])
def test_a_point_of_small_order_does_not(y: int, sign: int) -> None:
    assert not is_public_key(written(y, sign))


@pytest.mark.parametrize("y", [PRIME, PRIME + 1, PRIME + 3, 2**255 - 1])
def test_a_point_that_has_another_writing_does_not(y: int) -> None:
    assert not is_public_key(written(y))


def test_nor_does_another_text_of_the_same_bytes() -> None:
    text = written(3)[:-1] + "B"
    assert decoded(text) == decoded(written(3))
    assert not is_public_key(text)


@pytest.mark.parametrize("text", ["", "Q" * 42, "Q" * 44, "Q" * 43 + "\n", "Q" * 42 + "=", "Q" * 42 + "é"])
def test_nor_does_what_is_no_key(text: str) -> None:
    assert not is_public_key(text)
