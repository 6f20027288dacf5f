"""Who hears of a worker's links, and fails at that, keeps no other from hearing of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from wire.errors import NodeLost, ProtocolError
from worker.daemon.link_handler import LinkHandler
from worker.state import events as ev


@pytest.mark.parametrize("fault", [KeyError("a mailbox"), NodeLost("gone"), ProtocolError("not asked for")], ids=repr)
def test_who_fails_at_hearing_of_a_link_keeps_no_other_from_hearing_of_it(
    caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    told: list[str] = []

    def fails(node: str) -> None:
        raise fault

    handler = LinkHandler(cast(Any, SimpleNamespace(feed=lambda event: told.append(type(event).__name__), machine=1)))
    handler.linked += [fails, lambda node: told.append(f"linked to {node}")]
    handler.unlinked += [fails, lambda node: told.append(f"no link to {node}")]
    link = cast(Any, SimpleNamespace(peer=SimpleNamespace(node_id="other", name="other", role="worker")))
    handler.on_linked(link)
    handler.on_unlinked(link, None)
    assert told == ["linked to other", ev.NodeLinked.__name__, ev.NodeUnlinked.__name__, "no link to other"]
    assert caplog.text.count(f"{fault!r}".partition("(")[0]) == 2


def test_a_machine_that_fails_at_the_end_of_a_link_keeps_nobody_from_dialling_again() -> None:
    told: list[str] = []

    def fails(event: ev.Event) -> None:
        raise ValueError("no one foresaw this")

    handler = LinkHandler(cast(Any, SimpleNamespace(feed=fails, machine=1)))
    handler.unlinked.append(told.append)
    handler.on_unlinked(cast(Any, SimpleNamespace(peer=SimpleNamespace(node_id="owner", name="o", role="r"))), None)
    assert told == ["owner"]
