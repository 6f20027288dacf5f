"""Names of hosts that no resolver can be asked for are names without an address."""

from __future__ import annotations

import pytest

from wire.errors import ConfigError
from wire.limits import DEFAULT
from wire.link.websocket_carrier import WebSockets


@pytest.mark.parametrize("host", ["a..b", "x" * 300, "\udcff", "nobody.invalid"])
async def test_a_name_that_cannot_be_resolved_is_said_to_be_none(host: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of any address"):
        await WebSockets(DEFAULT).resolve(host)
