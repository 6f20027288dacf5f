"""Who may ask a server: names, origins, and keys that are stored as hashes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from mesh.errors import InputError, StorageError
from mesh.serving.access import OWN, Access, bearer, single
from mesh.serving.api_error import ApiError
from mesh.serving.api_keys import ApiKeys

HOME = "127.0.0.1:7200"


@pytest.mark.parametrize("host", [HOME, "localhost", "LOCALHOST:1", "[::1]:7200"])
def test_names_of_loopback_are_this_server(host: str) -> None:
    OWN.check(host, None)
    OWN.check(host, f"http://{host}")


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "evil.example:7200", "localhost.evil.example", "127.0.0.1.evil.example", "[::2]",
     "127.0.0.1:7200@evil.example", "localhost:evil.example", "[::1]evil.example", "[::1]:7200@evil.example"],
)  # fmt: skip
def test_other_names_are_refused(host: str | None) -> None:
    with pytest.raises(ApiError, match="not a name of this server") as caught:
        OWN.check(host, None)
    assert caught.value.status == 403


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "", "http://127.0.0.1:7201", "http://localhost:7200", "file://", "chrome-extension://a",
     "http://127.0.0.1:7200.evil.example", "http://[", "javascript:0"],
)  # fmt: skip
def test_pages_of_other_sites_are_refused(origin: str) -> None:
    with pytest.raises(ApiError, match="may not send requests"):
        OWN.check(HOME, origin)


def test_names_and_origins_can_be_allowed() -> None:
    access = Access(frozenset({"models.example"}), frozenset({"https://chat.example"}))
    access.check("models.example:443", "https://chat.example")
    access.check("models.example", "https://models.example")
    with pytest.raises(ApiError):
        access.check("models.example", "https://other.example")


def test_a_key_is_read_as_each_client_sends_it() -> None:
    assert bearer([("Authorization", "Bearer  abc ")]) == "abc"
    assert bearer([("X-Api-Key", "abc")]) == "abc"
    assert bearer([("Authorization", "Basic abc"), ("Cookie", "x-api-key=abc")]) == ""


@pytest.mark.parametrize(
    "headers",
    [
        (("Authorization", "Bearer abc"), ("Authorization", "Bearer abd")),
        (("Authorization", "Bearer abc"), ("x-api-key", "abd")),
        (("X-API-Key", "abc"), ("x-api-key", "ABC")),
    ],
)
def test_two_keys_that_differ_are_none(headers: tuple[tuple[str, str], ...]) -> None:
    for order in (headers, headers[::-1]):
        with pytest.raises(ApiError, match="2 different API keys") as caught:
            bearer(order)
        assert caught.value.status == 401
    assert bearer([*headers[:1], ("X-Api-Key", "abc"), ("x-api-key", " ")]) == "abc"


def test_a_header_that_comes_twice_is_refused() -> None:
    assert single([("Origin", "a"), ("Host", "b")], "origin") == "a"
    assert single([("Host", "b")], "Origin") is None
    with pytest.raises(ApiError, match="2 headers Origin") as caught:
        single([("Origin", "a"), ("origin", "a")], "Origin")
    assert caught.value.status == 400


def test_keys_are_stored_as_hashes_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "keys.json"
    keys, other = ApiKeys(path), ApiKeys(path)
    assert keys.records() == ()
    assert keys.holder("gm-anything") is None
    first, second = keys.create("laptop"), keys.create("phone")
    stored = path.read_text("utf-8")
    assert first not in stored
    assert first.removeprefix("gm-") not in stored
    if sys.platform != "win32":
        assert os.stat(path).st_mode & 0o077 == 0
    holder = other.holder(first)
    assert holder is not None
    assert holder.name == "laptop"
    assert [record.name for record in other.records()] == ["laptop", "phone"]
    for wrong in ("", first[:-1], first + "a", first.upper(), "\ud800", holder.digest):
        assert other.holder(wrong) is None
    keys.remove(holder.key_id)
    assert other.holder(first) is None
    assert other.holder(second) is not None
    with pytest.raises(InputError, match="there is no key"):
        keys.remove(holder.key_id)


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb"])
def test_a_key_has_a_name_that_prints(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="a key's name"):
        ApiKeys(tmp_path / "keys.json").create(name)


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"the keys in .* cannot be read"):
        ApiKeys(tmp_path / "file" / "keys.json").records()


RECORD = {"key_id": "a", "name": "x", "digest": "é", "created_s": 1.0}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"keys": [{"name": "x"}]}', json.dumps({"keys": 3}), json.dumps({"keys": [RECORD]}),
     json.dumps({"keys": [{**RECORD, "digest": 3}]})],
)  # fmt: skip
def test_a_damaged_file_lets_nobody_in(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(StorageError, match="cannot be read"):
        ApiKeys(path).holder("gm-x")


def test_the_address_at_which_a_request_came_in_is_a_name_of_this_server() -> None:
    OWN.check("192.168.1.7:7200", "http://192.168.1.7:7200", "192.168.1.7")
    OWN.check("[fd00::7]:7200", None, "fd00::7")
    for host, here in (("192.168.1.8", "192.168.1.7"), ("evil.example", "192.168.1.7"), ("", "")):
        with pytest.raises(ApiError, match="not a name of this server"):
            OWN.check(host, None, here)
