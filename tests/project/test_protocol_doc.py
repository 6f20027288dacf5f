"""docs/protocol.md: its tables are those of the code, its numbers those of the transport."""

from __future__ import annotations

import re

import pytest
from support.golden import negated, stored
from support.protocol_doc import PATH, ROOT, TABLES, with_tables

from coordinator.authority import token_table
from wire import addresses
from wire.discovery import announcements, mdns
from wire.discovery.mdns import SERVICE
from wire.ir.codec import FORMAT
from wire.joining import join_port, join_protocol
from wire.link import websocket_carrier
from wire.protocol.frames import MAGIC, encode
from wire.protocol.messages import INLINE_BYTES_MAX
from wire.protocol.versions import PROTOCOL, text
from wire.security import tls_listener
from wire.security.connection_limiter import ConnectionLimits
from wire.timeouts import DEFAULT_TIMEOUTS as LAN

DOCUMENT = PATH.read_text()
GATE = ConnectionLimits()


def test_its_tables_are_up_to_date() -> None:
    """After a deliberate change: python tests/support/protocol_doc.py"""
    assert with_tables(DOCUMENT) == DOCUMENT


@pytest.mark.parametrize("name", TABLES)
def test_every_table_stands_there_once(name: str) -> None:
    assert DOCUMENT.count(f"<!-- {name}:") == 1 and len(TABLES[name]().splitlines()) > 5


@pytest.mark.parametrize(
    "says",
    [
        f"`GET {websocket_carrier.PATH}`",
        f"{LAN.request_header_s:g} s from connecting",
        f"{LAN.link_setup_s:g} s until the link stands",
        f"At most {websocket_carrier.UNLINKED_MAX} connections",
        f"now {text(PROTOCOL)}.",
        f"Magic is `{MAGIC.decode()}`",
        f"| format | {FORMAT} |",
        f"tensor of up to {INLINE_BYTES_MAX >> 10} KiB",
        f"`{SERVICE}`",
        f"{addresses.PORT} to {addresses.LAST_PORT}",
        f"coordinator's port + {join_port.PORT_OFFSET}.",
        f"A call has {LAN.join_call_s:g} s: {LAN.first_word_s:g} s until",
        f"has {GATE.patience_s:g} s for its next step",
        f"calls again for {LAN.join_insist_s:g} s",
        f"A handshake has {LAN.tls_handshake_s:g} s.",
        f"at most {join_protocol.STRANGER_BYTES_MAX >> 10} KiB from the other",
        f"{join_protocol.GRANT_BYTES_MAX >> 10} KiB of Grant",
        f"One TLS handshake begins every {tls_listener.TURN_S * 1000:g} ms",
        f"at most {GATE.strangers_max} callers at once, and at most {GATE.strangers_per_origin_max} of one origin",
        f"From the {GATE.questions_per_origin + 1}th question of an origin",
        f"the {GATE.questions + 1}st of all within a minute on, the answer is sent {GATE.delay_s:g} s later",
        f"It may ask {token_table.ASKED_MAX} times",
        f"at most {announcements.CANDIDATES_MAX} candidates with at most {announcements.ADDRESSES_MAX} addresses each",
        f"at most {announcements.JOINED_MAX:,} are stored beside the {announcements.CANDIDATES_MAX}",
        f"for at most {announcements.TTL_S} s after they were last heard",
        f"dials one at most every {LAN.discovery_redial_s:g} s",
        f"A node reads at most {mdns.ADVERTS_PER_S_MAX} announcements in a second, and none longer than 1,024 bytes",
        f"divided by {announcements.BUCKET_S:g} and rounded down",
        f"every {mdns.ASK_S:g} s, unless it heard another node ask",
        f"checks its interfaces every {mdns.LOOK_S:g} s",
    ],
)
def test_its_numbers_are_those_of_the_code(says: str) -> None:
    assert says in DOCUMENT


def test_the_smallest_graph_is_what_the_text_says() -> None:
    data = negated().encoded
    assert data == stored()["graph small"] and data[:2] == b"\x9a\x01"
    columns = [b"\x01\x00\x01", b"\x01\x00\x01", b"\x01\x01", b"\x01\x00\x01"]
    assert b"".join(b"\xc4" + bytes([len(column)]) + column for column in columns) in data


def test_sections_that_files_refer_to_exist() -> None:
    titles = set(re.findall(r"(?m)^## (.+)$", DOCUMENT))
    named = set()
    for path in [*(ROOT / "wire").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        named |= set(re.findall(r'docs/protocol\.md, "([^"]+)"', path.read_text()))
    assert named and named <= titles, named - titles


def test_it_says_how_a_hello_begins() -> None:
    from support.frames import FRAMES

    assert encode(FRAMES[0]).hex(" ") in DOCUMENT
