"""docs/protocol.md, "Messages": both ways, every field's limit, and a FrameError for whatever is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from msgspec import Struct
from support.messages import BLOB, MESSAGES, PLAN, VALUE

from wire.errors import FrameError, InputError, LocalError
from wire.limits import DEFAULT, KIB, MIB
from wire.protocol.messages import (
    APPENDED,
    DISPENSABLE,
    SINCE_1,
    AnyMessage,
    AskJobs,
    AskNodes,
    BlobSpec,
    Deploy,
    FetchBlob,
    JobReport,
    Jobs,
    Join,
    Joined,
    Leaving,
    LogLines,
    Message,
    NodeReport,
    Nodes,
    PartRun,
    PartSpec,
    PlanGraph,
    PlanKey,
    Planned,
    Push,
    Ran,
    Relay,
    Run,
    Source,
    SourceKind,
    Suspected,
    TailLog,
    Target,
    Value,
    decode_message,
    encode_message,
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_comes_back_as_it_went(message: Message) -> None:
    assert decode_message(encode_message(message)) == message
    assert decode_message(memoryview(encode_message(message))) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_truncation_and_every_extra_byte_is_refused(message: Message) -> None:
    data = encode_message(message)
    for length in range(len(data)):
        with pytest.raises(FrameError):
            decode_message(data[:length])
    with pytest.raises(FrameError):
        decode_message(data + b"\x00")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_field_that_nobody_knows_is_refused(message: Message) -> None:
    """A newer minor may append fields, and sends them only to nodes that speak it."""
    longer = [*msgspec.msgpack.decode(encode_message(message)), "more"]
    with pytest.raises(FrameError):
        decode_message(msgspec.msgpack.encode(longer))


@pytest.mark.parametrize("word", ["input", "edge", "param"])
def test_the_kind_of_a_source_is_the_word_that_every_version_writes(word: str) -> None:
    written = msgspec.msgpack.encode(
        ["Deploy", [1, 1], [[0, 0, BLOB, [[word, 0, 0, None, ""]], [], [], None]], {}, [], {}]
    )
    message = decode_message(written)
    assert isinstance(message, Deploy) and message.parts[0].sources == (Source(SourceKind(word)),)
    again = msgspec.msgpack.decode(encode_message(message))
    assert again[: len(msgspec.msgpack.decode(written))] == msgspec.msgpack.decode(written)
    with pytest.raises(FrameError):
        decode_message(written.replace(word.encode(), b"x" * len(word)))


def test_an_unknown_tag_is_refused() -> None:
    for tag in ("Invent", "Message", "", 7, None, "deploy"):
        with pytest.raises(FrameError):
            decode_message(msgspec.msgpack.encode([tag]))


LIMITED: list[tuple[str, Callable[[int], Message], int]] = [
    ("a text", lambda n: Leaving("x" * n), 4096),
    ("a name", lambda n: Join(1, 0.1, "x" * n), 256),
    ("a count", lambda n: Suspected(n), 1 << 53),
    ("an index", lambda n: Push(PLAN, 1, n, 0, VALUE), 1 << 20),
    ("inline data", lambda n: Push(PLAN, 1, 1, 0, Value("u8", (n,), bytes(n))), 64 * KIB),
    ("a rank", lambda n: Push(PLAN, 1, 1, 0, Value("u8", (1,) * n)), 8),
    ("a dimension", lambda n: Push(PLAN, 1, 1, 0, Value("u8", (n,))), 1 << 31),
    ("log lines of leaving", lambda n: Leaving("", ("",) * n), 64),
    ("log lines", lambda n: LogLines(("",) * n), 1000),
    ("lines asked for", lambda n: TailLog(n), 1000),
    ("lines of a job", lambda n: Jobs((JobReport("j", "", "done", 0.0, 0.0, {}, ("",) * n),)), 1000),
    ("a report", lambda n: Jobs((JobReport("j", "", "done", 0.0, 0.0, {}, (), "x" * n),)), 1 * MIB),
    ("a plan", lambda n: Planned("x" * n), 4 * MIB),
    ("holders", lambda n: deploy(blobs=(BlobSpec(BLOB, 1, "u8", (1,), ("",) * n),)), 64),
    ("sources", lambda n: deploy(parts=(PartSpec(0, 0, BLOB, (Source(SourceKind.INPUT),) * n, ()),)), 100_000),
    ("targets", lambda n: deploy(parts=(PartSpec(0, 0, BLOB, (), ((Target(""),) * n,)),)), 4096),
    ("outputs of a part", lambda n: deploy(parts=(PartSpec(0, 0, BLOB, (), ((),) * n),)), 100_000),
]


def deploy(**fields: Any) -> Deploy:
    return Deploy(**{"plan": PLAN, "parts": (), "graphs": {}, "blobs": (), "peers": {}} | fields)


@pytest.mark.parametrize(("what", "make", "most"), LIMITED, ids=[row[0] for row in LIMITED])
def test_a_limit_holds_exactly(what: str, make: Callable[[int], Message], most: int) -> None:
    for size in (most - 1, most):
        assert decode_message(encode_message(make(size))) == make(size)
    with pytest.raises(FrameError):
        decode_message(encode_message(make(most + 1)))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_an_address_has_32_bytes(size: int) -> None:
    with pytest.raises(FrameError):
        decode_message(encode_message(FetchBlob(bytes(size), 1)))
    assert decode_message(encode_message(FetchBlob(bytes(32), 1))) == FetchBlob(bytes(32), 1)


def test_the_bytes_of_a_message() -> None:
    most = DEFAULT.message_bytes_max
    overhead = len(encode_message(deploy(graphs={BLOB: bytes(1 << 16)}))) - (1 << 16)
    for size in (most - 1, most):
        assert len(encode_message(deploy(graphs={BLOB: bytes(size - overhead)}))) == size
        decode_message(encode_message(deploy(graphs={BLOB: bytes(size - overhead)})))
    with pytest.raises(FrameError, match="too long"):
        decode_message(encode_message(deploy(graphs={BLOB: bytes(most + 1 - overhead)})))


WRONG = [
    ["Suspected", -1],
    ["Suspected", 1.5],
    ["Suspected", True],
    ["Suspected", "1"],
    ["Suspected", None],
    ["Suspected"],
    ["Push", [1, 1], 1, 1, 0, ["u8", [-1]]],
    ["Push", [1, 1], 1, 1, 0, ["u8", "x"]],
    ["Push", [1], 1, 1, 0, ["u8", [1]]],
    ["Join", 1, -0.5, "c"],
    ["TailLog", -1],
    {"tag": "Done"},
    "Done",
    [],
    None,
]


@pytest.mark.parametrize("fields", WRONG, ids=repr)
def test_a_wrong_type_is_refused(fields: Any) -> None:
    with pytest.raises(FrameError):
        decode_message(msgspec.msgpack.encode(fields))


# -- an earlier minor version -----------------------------------------------------------------------------


class OldPart(Struct, array_like=True, forbid_unknown_fields=True):
    part: int
    device: int
    graph: bytes
    sources: list[Any]
    targets: list[Any]


class OldDeploy(Struct, array_like=True, tag="Deploy", forbid_unknown_fields=True):
    plan: list[int]
    parts: list[OldPart]
    graphs: dict[bytes, bytes]
    blobs: list[Any]
    peers: dict[str, list[str]]
    force: bool = False


class OldPartRun(Struct, array_like=True, forbid_unknown_fields=True):
    part: int
    compute_s: float
    wait_s: float


class OldRan(Struct, array_like=True, tag="Ran", forbid_unknown_fields=True):
    outputs: list[Any]
    parts: list[OldPartRun]
    bytes_in: int
    bytes_out: int


class OldRun(Struct, array_like=True, tag="Run", forbid_unknown_fields=True):
    plan: list[int]
    step: int
    feeds: list[Any]


def test_a_node_of_the_minor_before_is_sent_what_it_knows() -> None:
    plan = PlanKey(3, 7)
    part = PartSpec(1, 0, bytes(32), (Source(SourceKind.INPUT),), ((Target("", 0, 0),),))
    deploy = encode_message(Deploy(plan, (part, part), {}, (), {"n": ("h:1",)}, True), 0)
    assert msgspec.msgpack.decode(deploy, type=OldDeploy).parts[1].targets == [[["", 0, 0]]]
    assert msgspec.msgpack.decode(encode_message(Run(plan, 2, ()), 0), type=OldRun).step == 2
    ran = Ran((), (PartRun(1, 0.5, 0.25, 0.125, 0.25, 0.5, 30, 40, 50),), 10, 20)
    assert msgspec.msgpack.decode(encode_message(ran, 0), type=OldRan).parts == [OldPartRun(1, 0.5, 0.25)]
    assert decode_message(encode_message(ran, 0)) == Ran((), (PartRun(1, 0.5, 0.25),), 10, 20)
    assert msgspec.msgpack.decode(encode_message(PlanGraph(b"graph"), 0)) == ["PlanGraph", b"graph", "auto"]
    joined = Joined((), 1 << 30, (), "Linux", "", (), "asked")
    assert decode_message(encode_message(joined, 0)) == Joined((), 1 << 30, (), "Linux")
    node = NodeReport("w", "n", 1, (), "healthy", "0.1", (), 0.5, "Linux", "asked")
    known = NodeReport("w", "n", 1, (), "healthy", "0.1", (), 0.5, "Linux")
    assert decode_message(encode_message(Nodes((node,), more=True), 0)) == Nodes((known,))
    assert decode_message(deploy) == Deploy(plan, (part, part), {}, (), {"n": ("h:1",)}, True)
    assert msgspec.msgpack.decode(encode_message(AskNodes(pairs=True), 0)) == ["AskNodes", True]
    push = Push(plan, 2, 1, 0, Value("f32", (1,), bytes(4)))
    known = ["Push", [3, 7], 2, 1, 0, ["f32", [1], bytes(4), ""]]
    assert msgspec.msgpack.decode(encode_message(push, 0)) == known
    relay = Relay("n2", push, 4, 0, bytes(4))
    assert msgspec.msgpack.decode(encode_message(relay, 0)) == ["Relay", "n2", known[1:], 4, 0, bytes(4)]
    for message in MESSAGES:
        if not isinstance(message, (*SINCE_1, *APPENDED)):
            assert encode_message(message, 0) == encode_message(message)


NEW = [
    example for example in MESSAGES if isinstance(example, (*SINCE_1, *APPENDED)) and type(example) not in DISPENSABLE
]  # or with what is new


@pytest.mark.parametrize("message", NEW, ids=lambda message: type(message).__name__)
def test_what_it_has_no_words_for_is_an_error_here(message: Message) -> None:
    with pytest.raises(LocalError, match=r"the other node speaks 1\.0"):
        encode_message(message, 0)


def test_every_message_is_known_to_be_new_or_old() -> None:
    """A new one goes into SINCE_1, or raises the minor version."""
    old = """Deploy Deployed MissingGraphs Drop Done Run Ran Push Relay Began CancelStep FetchBlob Blob BlobStream Join
        Joined Devices Beat Revocations Suspected Probe Probed Ballast Landed Leaving Pause Paused TailLog LogLines
        SubmitJob JobAccepted PlanGraph Planned AskJobs Jobs AwaitJob JobResult CancelJob AskNodes Nodes PauseNode"""
    assert {kind.__name__ for kind in get_args(AnyMessage)} == {*old.split(), *(kind.__name__ for kind in SINCE_1)}


@pytest.mark.parametrize("minor", [0, 1])
def test_a_text_that_utf_8_cannot_hold_is_an_error_here(minor: int) -> None:
    with pytest.raises(InputError, match=r"'n\\udcff' is not text"):
        encode_message(AskJobs("n\udcff"), minor)
