"""Sizes and times that people read have units, everywhere; what they are to give is rounded up."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from support.source import PACKAGES, SourceFile, source_files, walk

from mesh.util.units import parse_size
from wire.units import counted, need_text, room_text, size_text, time_text

# Errors about bytes that do not come out even: there the exact numbers are the news, and their difference may be one.
EXACT = {"BlobCorrupt", "BlobMissing", "FrameError", "GraphDecodeError", "GraphError", "LocalError", "ProtocolError"}
EXACT |= {"InputError", "ShapeError", "OSError"}  # a file that is cut off, a constant of another shape
# So they are in the checks of frames, in bindings that are not aligned, and of names, whose bytes people count.
COUNTED = ("wire/protocol/frames.py:", "is not possible", "name_bytes_max", "NAME_BYTES_MAX")


READ = [  # a size, how it is read, as a need, and as room
    (0, "0 B", "0 B", "0 B"),
    (1023, "1023 B", "1023 B", "1023 B"),
    (1024, "1.0 KiB", "1.0 KiB", "1.0 KiB"),
    (1025, "1.0 KiB", "1.1 KiB", "1.0 KiB"),
    (2047, "2.0 KiB", "2.0 KiB", "1.9 KiB"),
    (1536 << 10, "1.5 MiB", "1.5 MiB", "1.5 MiB"),
    ((3 << 30) + 1, "3.0 GiB", "3.1 GiB", "3.0 GiB"),
    (5 << 50, "5120.0 TiB", "5120.0 TiB", "5120.0 TiB"),
]


@pytest.mark.parametrize(("size_bytes", "read", "need", "room"), READ)
def test_sizes_are_read_and_needs_are_never_too_small(size_bytes: int, read: str, need: str, room: str) -> None:
    assert (size_text(size_bytes), need_text(size_bytes), room_text(size_bytes)) == (read, need, room)
    if 0 < size_bytes < 1 << 50:
        assert parse_size(room) <= size_bytes <= parse_size(need)


TIMES = [
    (0.0, "0 ms"), (4e-8, "under 0.0001 ms"), (0.00025, "0.25 ms"), (0.1426, "143 ms"), (0.99949, "999 ms"),
    (0.9996, "1 s"), (1.4236, "1.42 s"), (59.96, "60 s"), (299, "299 s"), (1500, "25 min"), (7300, "2.03 h"),
    (3.6e7, "10,000 h"),
]  # fmt: skip


@pytest.mark.parametrize(("seconds", "read"), TIMES)
def test_times_are_read_in_three_digits_without_a_power_of_ten(seconds: float, read: str) -> None:
    assert time_text(seconds) == read


def test_one_thing_is_no_several() -> None:
    assert [counted(count, "part") for count in (0, 1, 2, 1234)] == ["0 parts", "1 part", "2 parts", "1,234 parts"]


@pytest.fixture(autouse=True, scope="module")
def trees_that_are_let_go() -> Iterator[None]:
    yield
    for file in source_files(*PACKAGES):
        file.forget()


def raw_times(file: SourceFile) -> Iterator[str]:
    """Texts that write a number of milliseconds themselves, or a time in three digits."""
    for node in file.nodes:
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, after in zip(node.values, node.values[1:], strict=False):
            said = str(after.value) if isinstance(after, ast.Constant) else ""
            if not isinstance(value, ast.FormattedValue) or value.format_spec is None:
                continue
            digits = ast.unparse(value.format_spec)
            if re.match(r" ms\b", said) or (re.match(r" s\b", said) and "3g" in digits):
                yield f"{file.path}:{node.lineno}: {ast.unparse(node)[:100]}"


def test_what_people_read_has_its_times_from_one_function() -> None:
    lines = [line for file in source_files(*PACKAGES) for line in raw_times(file)]
    here = (
        "wire/units.py:",
        "coordinator/workers/failure_detector.py:",
    )  # the function itself, and settings as they were given
    assert not [line for line in lines if not line.startswith(here)]
    assert all(any(line.startswith(start) for line in lines) for start in here), "an exception that nothing needs"


def raw_sizes(file: SourceFile) -> Iterator[str]:
    """Texts of errors, reasons and events that hold a number of bytes as it is."""
    exact = {
        id(inner)
        for call in file.nodes
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in EXACT
        for inner in walk(call)
    }
    for node in file.nodes:
        if not isinstance(node, ast.JoinedStr) or id(node) in exact:
            continue
        for value, after in zip(node.values, node.values[1:], strict=False):
            said = after.value if isinstance(after, ast.Constant) else ""
            number = value.value if isinstance(value, ast.FormattedValue) else None
            named = ast.unparse(number) if number is not None else ""
            sized = named.endswith(("_bytes", "nbytes")) and not isinstance(number, ast.Call)
            if number is not None and (str(said).startswith((" bytes", " more bytes")) or sized):
                yield f"{file.path}:{node.lineno}: {ast.unparse(node)[:100]}"


def test_what_people_read_holds_no_bare_number_of_bytes() -> None:
    lines = [line for file in source_files(*PACKAGES) for line in raw_sizes(file)]
    assert not [line for line in lines if not any(phrase in line for phrase in COUNTED)]
    assert all(any(phrase in line for line in lines) for phrase in COUNTED), "an exception that nothing needs"
