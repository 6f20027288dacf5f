"""The handler of a coordinator's links."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.runtime.message_router import MessageRouter
from wire.errors import BlobMissing, NodeLost
from wire.protocol.messages import Revocations


def test_a_link_that_ends_with_a_revoked_one_keeps_no_other_from_the_news() -> None:
    """What is said of the end of a link is told others, whose links may not take it."""
    calls: list[str] = []

    def link(node: str) -> Any:
        made = SimpleNamespace(peer=SimpleNamespace(node_id=node, name=node), closed=False)

        def notify(message: object) -> None:
            if made.closed:
                raise NodeLost("the link is closed")
            calls.append(node)

        def close(reason: str) -> None:
            made.closed = links[1].closed = True

        made.notify, made.close = notify, close
        return made

    links = [link("revoked"), link("full"), link("well")]
    MessageRouter({}).revoke(cast(Revocations, None), {"revoked"}, links)
    assert calls == ["well"]


@pytest.mark.parametrize("fault", [KeyError("a session"), BlobMissing("a session's copy")], ids=repr)
def test_who_fails_at_hearing_of_the_end_of_a_link_keeps_no_other_from_hearing_of_it(
    caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    calls: list[str] = []

    def fails(link: Any, error: Any) -> None:
        raise fault

    link = cast(Any, SimpleNamespace(peer=SimpleNamespace(node_id="worker", name="worker")))
    router = MessageRouter({"worker": cast(Any, SimpleNamespace(link=link))})
    router.unlinked += [fails, lambda link, error: calls.append("second")]
    router.lost = lambda node, why: calls.append(f"{node} is lost: {why}")
    router.on_unlinked(link, NodeLost("silent"))
    assert calls == ["second", "worker is lost: silent"]
    assert "hearing of the end of a link failed" in caplog.text and str(fault) in caplog.text
