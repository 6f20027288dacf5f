"""The proof of the user: who passes, and that nothing of it can be sent back, used twice or passed on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wire.errors import NotTrusted
from wire.security import user_proof
from wire.security.user_proof import ANSWER_BYTES_MAX, END, OPENING_BYTES, PROOF_BYTES, Ends

SECRET, OTHER = b"s" * 32, b"t" * 32
ONE, TWO = bytes(range(32)), bytes(range(32, 64))
ENDS = Ends(("127.0.0.1", 50_000), ("127.0.0.1", 7100))
ELSEWHERE = Ends(("127.0.0.1", 50_001), ("127.0.0.1", 7101))  # of somebody who passes it on


def answered(secret: bytes = SECRET, ends: Ends = ENDS) -> user_proof.Answer:
    said = user_proof.read_answer(user_proof.answer(secret, ONE, TWO, ends, "anna"))
    assert said is not None
    return said


def test_both_ends_that_know_the_secret_believe_each_other() -> None:
    assert user_proof.nonce_of(user_proof.opening(ONE)) == ONE
    assert len(user_proof.opening(ONE)) == OPENING_BYTES == user_proof.opening_size(user_proof.opening(ONE)[:5])
    said = answered()
    assert (said.nonce, said.user) == (TWO, "anna")
    assert user_proof.is_acceptors(SECRET, ONE, said, ENDS)
    last = user_proof.dialers_proof(SECRET, ONE, TWO, ENDS)
    assert len(last) == PROOF_BYTES and user_proof.is_dialers(SECRET, ONE, TWO, last, ENDS)


def test_the_secret_and_what_it_made_are_not_in_what_is_said() -> None:
    said = user_proof.opening(ONE) + user_proof.answer(SECRET, ONE, TWO, ENDS, "anna")
    said += user_proof.dialers_proof(SECRET, ONE, TWO, ENDS)
    assert SECRET not in said and SECRET.hex().encode() not in said


def test_an_acceptor_is_believed_for_one_secret_one_nonce_and_one_connection() -> None:
    assert not user_proof.is_acceptors(OTHER, ONE, answered(), ENDS)
    assert not user_proof.is_acceptors(SECRET, TWO, answered(), ENDS), "an answer of before"
    assert not user_proof.is_acceptors(SECRET, ONE, answered(ends=ELSEWHERE), ENDS), "passed on by who listens here"
    assert not user_proof.is_acceptors(SECRET, ONE, replace(answered(), nonce=ONE), ENDS)
    assert not user_proof.is_acceptors(SECRET, ONE, replace(answered(), proof=b""), ENDS)


def test_a_dialer_is_believed_for_one_secret_both_nonces_and_one_connection() -> None:
    last = user_proof.dialers_proof(SECRET, ONE, TWO, ENDS)
    assert not user_proof.is_dialers(OTHER, ONE, TWO, last, ENDS)
    assert not user_proof.is_dialers(SECRET, ONE, ONE, last, ENDS), "said before"
    assert not user_proof.is_dialers(SECRET, TWO, TWO, last, ENDS)
    assert not user_proof.is_dialers(SECRET, ONE, TWO, last, ELSEWHERE), "passed on"
    assert not user_proof.is_dialers(SECRET, ONE, TWO, END, ENDS)


@pytest.mark.parametrize("ends", [ENDS, Ends(ENDS.acceptor, ENDS.dialer)])
def test_a_proof_cannot_be_sent_back(ends: Ends) -> None:
    """Who asked both nodes at once gets proofs of each side, and none is good for the other side."""
    assert not user_proof.is_dialers(SECRET, ONE, TWO, answered(ends=ends).proof + END, ENDS)
    last = user_proof.dialers_proof(SECRET, ONE, TWO, ends).removesuffix(END)
    assert not user_proof.is_acceptors(SECRET, ONE, replace(answered(), proof=last), ENDS)


def test_ends_are_the_same_however_each_side_writes_them() -> None:
    mapped = Ends(("::ffff:127.0.0.1", 50_000), ("::FFFF:127.0.0.1", 7100))
    assert user_proof.is_acceptors(SECRET, ONE, answered(ends=mapped), ENDS)
    scoped = Ends(("fe80::1%lo", 1), ("::1", 2))
    assert user_proof.is_acceptors(SECRET, ONE, answered(ends=scoped), Ends(("fe80::1", 1), ("0:0::1", 2)))


@pytest.mark.parametrize(
    "said",
    [b"", END, b"HTTP/1.1 400 Bad Request" + END, b"graph-mesh user 1 " + b"a" * 20 + END, b"SSH-2.0-x\r\n",
     b"graph-mesh user 1 " + b"a" * ANSWER_BYTES_MAX + END],
)  # fmt: skip
def test_what_no_acceptor_says_is_no_answer(said: bytes) -> None:
    assert user_proof.read_answer(said) is None


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", user_proof.opening(ONE)[:-1], b"\x16\x03\x01"])
def test_what_no_dialer_says_is_no_opening(said: bytes) -> None:
    with pytest.raises(NotTrusted):
        user_proof.nonce_of(said)


def test_a_nonce_that_is_none_is_refused() -> None:
    with pytest.raises(NotTrusted, match="none"):
        user_proof.nonce_of(user_proof.opening(ONE).replace(b"00", b"zz", 1))
    assert user_proof.opening_size(b"gr") == OPENING_BYTES
    for begin in (b"GET / HTTP/1.1", b"\x16\x03", b"graph-mesh user 2 "):
        with pytest.raises(ValueError, match="no node"):
            user_proof.opening_size(begin)


def test_a_name_that_would_steer_a_terminal_does_not() -> None:
    said = user_proof.read_answer(user_proof.answer(SECRET, ONE, TWO, ENDS, "a\x1b[2Jé" * 40))
    assert said is not None and "\x1b" not in said.user and len(said.user) <= 64
