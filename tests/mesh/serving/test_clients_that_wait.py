"""What our own clients, `mesh-coord chat` and the chat page, make of a server that waits, stops or is not there.

Node runs the page's script as it is, with as much of a page as the script touches (chat_page.js).
"""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mesh.commands.chat import chat
from mesh.commands.exit_codes import OK
from mesh.serving.calls import Call
from mesh.serving.http_server import COMMENT, HttpServer, Listening
from mesh.serving.model_server import Served
from mesh.serving.openai_chat import failed_frame
from mesh.serving.replies import EVENT_STREAM, StreamReply, data_frame
from mesh.serving.routes import ROUTES, Route

PAGE = Path(__file__).with_name("chat_page.js")
PATH = "/v1/chat/completions"
NODE = shutil.which("node")
SOON_S = 60.0
with_node = pytest.mark.skipif(NODE is None, reason="it runs the page's script with Node")


class SlowModel:
    """Answers "Hello", after comments and with more of them between its two pieces; `stuck` says nothing more then."""

    def __init__(self, stuck: bool = False) -> None:
        self.stuck = stuck

    async def answer(self, call: Call) -> StreamReply:
        await asyncio.sleep(0.1)  # ten comments, as a server sends while it loads a model
        return StreamReply(EVENT_STREAM, self._frames(), failed_frame, lambda: None)

    async def _frames(self) -> AsyncIterator[bytes]:
        if self.stuck:
            await asyncio.Event().wait()
        for piece in ("Hel", "lo"):
            yield data_frame({"choices": [{"index": 0, "delta": {"content": piece}}]})
            await asyncio.sleep(0.1)
        yield b"data: [DONE]\n\n"


@asynccontextmanager
async def serving(model: SlowModel) -> AsyncIterator[str]:
    routes = tuple(route for route in ROUTES if route.path != PATH)
    own = Route("POST", PATH, model.answer, stream_failed=failed_frame)
    server = HttpServer(Served(), Listening(quiet_s=0.01), (*routes, own))
    port = await server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.close()


async def page(url: str, *actions: str) -> list[Any]:
    """What the page shows after the actions: [class, text] of each box of its log."""
    assert NODE is not None
    process = await asyncio.create_subprocess_exec(NODE, str(PAGE), url, *actions, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), SOON_S)
    assert process.returncode == 0
    shown: list[Any] = json.loads(out)
    return shown


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/"])
async def test_chat_waits_for_a_model_that_is_loaded(
    base: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it is given the server's address or what serve-model prints as OpenAI's base URL."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
    async with serving(SlowModel()) as url:
        options = Namespace(
            url=url + base, model="m", key_file="", system="", json=False, temperature=None, max_tokens=None
        )
        assert await asyncio.to_thread(chat, options) == OK
    assert capsys.readouterr().out == "Hello\n"


@with_node
async def test_the_page_waits_for_a_model_that_is_loaded() -> None:
    assert COMMENT.startswith(b":")  # what is no data in a stream of events
    async with serving(SlowModel()) as url:
        assert await page(url, "say Hi") == [["message user", "Hi"], ["message assistant", "Hello"]]


@with_node
async def test_the_page_says_that_an_answer_was_stopped() -> None:
    async with serving(SlowModel(stuck=True)) as url:
        shown = await page(url, "begin Hi", "stop")
    assert shown == [["message user", "Hi"], ["message assistant", "(stopped)"]]


@with_node
async def test_the_page_says_that_no_server_answers() -> None:
    async with serving(SlowModel()) as url:
        pass
    ((_, (kind, text))) = await page(url, "say Hi")
    assert (kind, text) == ("message assistant wrong", "the server does not answer. Is mesh-coord serve-model running?")
