"""Plans and reports that a coordinator tells its clients as JSON."""

from __future__ import annotations

import pytest

from mesh.backends.remote import parse_json
from wire.errors import ProtocolError


@pytest.mark.parametrize("text", ["", "{nope", "[1]", "null", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_what_is_no_plan_or_report_is_the_coordinators_fault(text: str) -> None:
    assert parse_json('{"seconds": 1.5}') == {"seconds": 1.5}
    with pytest.raises(ProtocolError, match="the coordinator sent"):
        parse_json(text)
