"""Join tokens: their text, what is said of wrong ones, and the keys and proofs made of them."""

from __future__ import annotations

import pytest

from wire.errors import TokenError
from wire.joining.join_tokens import (
    TOKEN_CHARS,
    Token,
    discovery_key,
    grant_mac,
    hkdf_sha256,
    new_token,
    parse_token,
    pin_of,
    request_mac,
    same,
)

TOKEN = new_token(b"authority", bytes(range(5)), bytes(range(20)))


def test_a_token_is_96_characters_and_comes_back() -> None:
    assert len(TOKEN.text) == TOKEN_CHARS == 96 and TOKEN.text.startswith("gm1_")
    assert parse_token(TOKEN.text) == TOKEN
    assert parse_token(f"  {TOKEN.text}\n") == TOKEN
    assert parse_token("gm1_" + TOKEN.text[4:].upper()) == TOKEN
    assert TOKEN.pin == pin_of(b"authority") and len(TOKEN.key_id) == 8


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "begins with gm1_"),
        ("hello", "not a join token"),
        (TOKEN.text[:-1], "has 96 characters and this has 95: was it cut"),
        (TOKEN.text[:40], "has 40"),
        (TOKEN.text * 2, "has 192: is it two"),
        (TOKEN.text[:50] + "1" + TOKEN.text[51:], "digits 2 to 7"),
        (TOKEN.text[:50] + "ß" + TOKEN.text[51:], "digits 2 to 7"),
        (TOKEN.text[:50] + "é" + TOKEN.text[51:], "digits 2 to 7"),
        (TOKEN.text[:50] + "=" + TOKEN.text[51:], "digits 2 to 7"),
        (TOKEN.text[:-1] + "b", "wrong last character"),
    ],
)
def test_what_is_wrong_with_a_text_is_said_without_showing_it(text: str, says: str) -> None:
    with pytest.raises(TokenError) as raised:
        parse_token(text)
    assert says in str(raised.value)
    assert TOKEN.text[20:30] not in str(raised.value)


def test_every_changed_character_makes_another_token_or_none() -> None:
    for at in range(4, TOKEN_CHARS):
        for other in "a7":
            text = TOKEN.text[:at] + other + TOKEN.text[at + 1 :]
            if text != TOKEN.text and at < TOKEN_CHARS - 1:
                assert parse_token(text) != TOKEN


def test_a_secret_does_not_show_in_logs() -> None:
    assert "secret" not in repr(TOKEN) and TOKEN.secret.hex() not in repr(TOKEN)


def test_keys_differ_by_secret_and_by_mesh() -> None:
    other_secret = Token(TOKEN.pin, TOKEN.key_id, bytes(20))
    other_mesh = Token(pin_of(b"other"), TOKEN.key_id, TOKEN.secret)
    assert len({TOKEN.key, other_secret.key, other_mesh.key, discovery_key(TOKEN.pin)}) == 4
    assert TOKEN.secret not in TOKEN.key and len(TOKEN.key) == 32


def test_a_proof_is_for_one_key_one_server_and_one_request() -> None:
    proofs = {
        request_mac(TOKEN.key, b"leaf", b"request"),
        request_mac(bytes(32), b"leaf", b"request"),
        request_mac(TOKEN.key, b"other leaf", b"request"),
        request_mac(TOKEN.key, b"leaf", b"other request"),
        grant_mac(TOKEN.key, bytes(32), b"grant"),
        grant_mac(TOKEN.key, b"1" * 32, b"grant"),
    }
    assert len(proofs) == 6 and all(len(proof) == 32 for proof in proofs)
    assert same(b"a" * 32, b"a" * 32) and not same(b"a" * 32, b"b" * 32)


# RFC 5869, appendix A, cases 1 to 3
@pytest.mark.parametrize(
    ("secret", "salt", "info", "expected"),
    [
        (
            "0b" * 22,
            bytes(range(0x0D)).hex(),
            bytes(range(0xF0, 0xFA)).hex(),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            bytes(range(0x50)).hex(),
            bytes(range(0x60, 0xB0)).hex(),
            bytes(range(0xB0, 0x100)).hex(),
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09da3275600c2f",
        ),
        (
            "0b" * 22,
            "",
            "",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)
def test_key_derivation_is_that_of_the_rfc(secret: str, salt: str, info: str, expected: str) -> None:
    made = hkdf_sha256(
        bytes.fromhex(secret), salt=bytes.fromhex(salt), info=bytes.fromhex(info), size_bytes=len(expected) // 2
    )
    assert made.hex() == expected
