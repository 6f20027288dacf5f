"""The tables of docs/protocol.md, made from the code they describe.

`python tests/support/protocol_doc.py` writes them anew between their marks; test_protocol_doc.py compares.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from msgspec import inspect

ROOT = Path(__file__).parent.parent.parent
if __name__ == "__main__":
    sys.path += [str(ROOT), str(ROOT / "tests")]

from support.golden import stored  # noqa: E402

from wire.joining import join_protocol  # noqa: E402
from wire.limits import DEFAULT, GIB, KIB, MIB, Limits  # noqa: E402
from wire.protocol.client_requests import CLIENT_REQUESTS  # noqa: E402
from wire.protocol.frames import _ROWS, HelloBody  # noqa: E402
from wire.protocol.messages import (  # noqa: E402
    AnyMessage,
    admin,
    blobs,
    deploy,
    explain,
    fields,
    jobs,
    link,
    run,
    session,
)
from wire.protocol.peer import _BOTH, _CHANNELS  # noqa: E402
from wire.protocol.permissions import MEANING, TABLE, Receiver  # noqa: E402

PATH = ROOT / "docs" / "protocol.md"
_WIDTHS = {"B": "u8", "H": "u16", "I": "u32", "Q": "u64"}
EXAMPLES = ("frame Hello", "frame Goodbye", "frame Request", "frame Cancel", "frame Piece", "frame StreamOpen",
            "frame StreamChunk", "frame Credit", "frame Ping", "message Done", "message Suspected", "message Drop",
            "graph small")  # fmt: skip


def frames() -> str:
    rows = []
    for row in _ROWS:
        slots = list(row.frame.__struct_fields__)
        rest = slots.pop() if slots[-1] in ("body", "payload", "header", "error", "reason") else ""
        names = [name for slot in slots for name in (("magic", "major", "minor") if slot == "version" else (slot,))]
        layout = re.findall(r"(\d*)([BHIQs])", row.layout.format)[1:]
        fields = [
            f"{name} {_WIDTHS.get(code, f'{count} B')}" for name, (count, code) in zip(names, layout, strict=True)
        ]
        channel = _CHANNELS[row.frame].name.lower() + (", bulk" if row.frame in _BOTH else "")
        most = f"{rest}, at most {size(row.rest_max(DEFAULT))}" if rest else "none"
        rows.append([f"0x{row.kind:02x}", f"`{row.name}`", channel, ", ".join(fields) or "none", most])
    return markdown(["kind", "frame", "connection", "fields after the kind", "rest"], rows)


def identity() -> str:
    return markdown(["field", "type"], [[name, kind] for name, kind in _fields(HelloBody)])


def all_messages() -> str:
    rows = [[f"`{kind.__name__}`", _field_list(kind), _about(kind)] for kind in get_args(AnyMessage)]
    return markdown(["message", "fields", "meaning"], rows)


def permissions() -> str:
    rows = []
    for way, table in TABLE.items():
        for message, row in table.items():
            cells = [" or ".join(row.get(receiver, ())) or "-" for receiver in Receiver]
            rows.append([f"`{message.__name__}`", way, *cells])
    return markdown(["message", "arrives as", *(f"to a {receiver}, from" for receiver in Receiver)], rows)


def relations() -> str:
    return markdown(["relation", "meaning"], [[relation, text] for relation, text in MEANING.items()])


def structs() -> str:
    records = [
        record
        for module in (fields, link, blobs, deploy, run, jobs, session, admin, explain)
        for record in vars(module).values()
        if isinstance(record, type) and record.__module__ == module.__name__
        and issubclass(record, fields.Record) and record is not fields.Record
    ]  # fmt: skip
    rows = [[f"`{record.__name__}`", _field_list(record), _about(record)] for record in records]
    return markdown(["struct", "fields", "meaning"], rows)


def join_frames() -> str:
    rows = []
    for row in join_protocol._ROWS:
        fields = ", ".join(f"{field.name} {_sizes(field.least, field.most)}" for field in row.fields)
        rows.append([f"{row.kind}", f"`{row.frame.__name__}`", fields, _about(row.frame)])
    return markdown(["kind", "frame", "fields in bytes", "meaning"], rows)


def refusals() -> str:
    return markdown(
        ["reason", "meaning"], [[f"`{reason}`", said] for reason, (said, _) in join_protocol.REFUSALS.items()]
    )


def client_requests() -> str:
    rows = [[f"`{request.__name__}`", role, reaches] for request, (role, reaches) in CLIENT_REQUESTS.items()]
    return markdown(["request", "role", "what it reaches"], rows)


def limits() -> str:
    source = (ROOT / "wire" / "limits.py").read_text()
    rows = []
    for name in Limits.__slots__:
        comment = re.search(rf"(?m)^    {name}: int = [^#\n]*(?:# (.*))?$", source)
        assert comment is not None
        rows.append([f"`{name}`", size(getattr(DEFAULT, name), "bytes" in name), comment[1] or ""])
    return markdown(["limit", "value", "explanation"], rows)


def examples() -> str:
    return markdown(["what", "bytes"], [[name, stored()[name].hex(" ")] for name in EXAMPLES])


TABLES: dict[str, Callable[[], str]] = {
    "frames": frames,
    "identity": identity,
    "messages": all_messages,
    "permissions": permissions,
    "relations": relations,
    "structs": structs,
    "join frames": join_frames,
    "refusals": refusals,
    "client requests": client_requests,
    "limits": limits,
    "examples": examples,
}


def with_tables(text: str) -> str:
    """The document with every table made anew."""
    for name, make in TABLES.items():
        mark = re.compile(rf"(<!-- {name}[^>]*-->\n).*?(<!-- end -->)", re.DOTALL)
        assert mark.search(text), f"no mark for {name}"
        text = mark.sub(lambda match, make=make: match[1] + make() + match[2], text)  # type: ignore[misc]
    return text


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def size(number: int, in_bytes: bool = True) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if in_bytes and number >= unit and number % unit == 0:
            return f"{number // unit} {name}"
    if number.bit_length() > 30 and number & (number - 1) == 0:
        return f"2^{number.bit_length() - 1}"
    return f"{number:,}" + (" B" if in_bytes else "")


def _sizes(least: int, most: int) -> str:
    return size(least, False) if least == most else f"{least}..{size(most, False)}"


def _about(kind: type[Any]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _field_list(kind: type[Any]) -> str:
    return ", ".join(f"{name} {text}" for name, text in _fields(kind)) or "none"


def _fields(kind: type[Any]) -> list[tuple[str, str]]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return [(field.name, _kind(field.type)) for field in info.fields]


def _kind(found: Any) -> str:
    """A type in a few words; text counts characters, everything else what it holds."""
    match found:
        case inspect.IntType(ge=low, le=high):
            return f"int{_range(low, high)}"
        case inspect.FloatType(ge=low):
            return f"float{_range(low, None)}"
        case inspect.StrType(max_length=most):
            return f"text{_most(most)}"
        case inspect.BytesType(min_length=least, max_length=most):
            return f"bytes[{least}]" if least is not None and least == most else f"bytes{_most(most)}"
        case inspect.BoolType():
            return "bool"
        case inspect.VarTupleType(item_type=item, max_length=most):
            return f"list{_most(most)} of {_kind(item)}"
        case inspect.DictType(key_type=key, value_type=value):
            return f"map of {_kind(key)} to {_kind(value)}"
        case inspect.StructType(cls=cls):
            return str(cls.__name__)
        case inspect.EnumType(cls=cls):
            return " or ".join(f'"{member.value}"' for member in cls)
        case inspect.UnionType(types=types):
            return " or ".join("nil" if isinstance(each, inspect.NoneType) else _kind(each) for each in types)
    raise AssertionError(found)


def _range(low: int | None, high: int | None) -> str:
    if low is None and high is None:
        return ""
    bound = "" if high is None else f"2^{high.bit_length() - 1}" if high & (high - 1) == 0 else f"{high:,}"
    return f" {low}..{bound}"


def _most(most: int | None) -> str:
    return "" if most is None else f"[..{size(most, False)}]"


if __name__ == "__main__":
    PATH.write_text(with_tables(PATH.read_text()))
