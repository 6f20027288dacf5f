"""Errors explain themselves: the texts of the commonest are those that were read and stored (support/failures.py)."""

from __future__ import annotations

import msgspec
import pytest
from support.failures import FAILURES, PATH, current

from wire.errors import (
    LOG_LINES_MAX,
    InputError,
    LocalError,
    MeshError,
    NodeLost,
    RemoteError,
    error_classes,
    from_fields,
)


def test_the_texts_are_those_that_were_stored() -> None:
    assert current() == PATH.read_text()


@pytest.mark.parametrize("name", FAILURES)
def test_every_error_says_what_to_do_or_where_it_happened(name: str) -> None:
    error = FAILURES[name]()
    assert error.next_step or error.node, "nobody knows what to do"
    if not isinstance(error, LocalError | RemoteError):
        assert error.node and (error.part or error.op), "an error of the work does not say where"


def test_all_that_an_error_says_crosses_between_processes() -> None:
    error = MeshError("what", node="desk", part="3", op="dot", cause="why", next_step="do this")
    error.log_lines = ("one", "two")
    again = from_fields(error.to_fields())
    assert str(again) == str(error) and again.log_lines == error.log_lines
    assert "[worker desk] [part 3] [at dot]" in str(again)


def test_a_class_that_keeps_its_parents_code_is_not_made_in_its_place() -> None:
    class Private(InputError):
        """Something that one process tells itself."""

        def __init__(self, names: list[str]) -> None:
            super().__init__(", ".join(names))

    error_classes.cache_clear()
    assert Private in InputError.__subclasses__()
    assert type(from_fields(Private(["x", "y"]).to_fields())) is InputError


def test_only_the_last_log_lines_travel_and_only_so_much_of_each() -> None:
    error = NodeLost("gone")
    error.log_lines = tuple(f"{number} " + "x" * 10_000 for number in range(99))
    fields = error.to_fields()
    assert sum(map(len, fields.values())) < 100_000
    lines = from_fields(fields).log_lines
    assert len(lines) == LOG_LINES_MAX and lines[-1].startswith("98 ")


def test_an_error_about_a_file_whose_name_is_no_text_can_be_sent() -> None:
    error = InputError("/tmp/\udcff cannot be read", cause="\udcff")
    error.log_lines = ("no \udcff",)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(error.to_fields()))["message"] == r"/tmp/\udcff cannot be read"
    again = from_fields(error.to_fields())
    assert (again.cause, again.log_lines) == (r"\udcff", (r"no \udcff",))
