"""A hundred streams of OpenAI's official client at once, while a worker is killed and another one joins.

Users ask again and again, so that there are a hundred streams all the while.  It prints what they got: tokens per
second, and the seconds to the first token of most streams.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from support.cases.served_models import VOCABULARY, llama_folder
from support.processes.commands import Daemon, daemon, environment, node_states, wait_for
from support.processes.site import serving

import mesh
from mesh import Mesh
from mesh.inference.tokenizer import Detokenizer, Tokenizer

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")]

STREAMS, TOKENS = 100, 80
HANGS_S = 600.0  # nothing here takes so long, however busy the machine
MESH = "hundred-streams"


@dataclass(slots=True)
class Heard:
    """What the users heard: streams that ended as they should, seconds to the first token of each, and all tokens."""

    began_s: float = field(default_factory=time.monotonic)
    streams: int = 0
    tokens: int = 0
    first_s: list[float] = field(default_factory=list)
    under_way: set[int] = field(default_factory=set)  # users who have heard some of their stream

    def told(self) -> str:
        took_s, waits = time.monotonic() - self.began_s, np.percentile(self.first_s, [50, 95])
        return (
            f"{self.streams} streams, {self.tokens / took_s:.0f} tokens/s, first token {waits[0]:.2f} s, "
            f"95 % within {waits[1]:.2f} s"
        )


def asking(user: int) -> dict[str, Any]:
    """What a user asks: a prompt of its own, a seed; some want probabilities, in batches of their own."""
    prompt = np.random.default_rng(user).integers(3, VOCABULARY, 8 + 4 * (user % 10)).tolist()
    scored = {"logprobs": 1} if user % 10 == 0 else {}
    return {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0.8, "seed": user, **scored}


def alone(folder: Path) -> list[str]:
    """What the model says to each user by itself."""
    tokenizer, model = Tokenizer(folder), mesh.load(folder)
    ends = {0, tokenizer.id_of("<|im_end|>")}
    with Mesh.builder().local(1, engine="native", threads=1).build() as own:
        texts = []
        for user in range(STREAMS):
            asked, writing = asking(user), Detokenizer(tokenizer)
            how = {"temperature": asked["temperature"], "seed": asked["seed"], "ends": list(ends)}
            said = model.generate(asked["prompt"], max_new_tokens=TOKENS, mesh=own, **how)
            texts.append("".join(writing.add(token) for token in said if token not in ends) + writing.rest())
    return texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("models") / "llama", width=128, layers=3, heads=4, kv_heads=2)


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[str]:
    return alone(folder)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.parametrize("how", [("--replicas", "2"), ("--strategy", "pipeline")], ids=["replicas", "pipeline"])
def test_no_stream_fails_and_no_token_changes(
    folder: Path, wanted: list[str], tmp_path: Path, stack: ExitStack, how: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)  # an empty one of the tests, which httpx does not take
    env = environment(tmp_path, MESH_NAME=MESH)
    coordinator = stack.enter_context(serving(tmp_path, env))

    def worker(name: str) -> Daemon:
        words = ("--port", "0", "--no-mdns", "--device", "native", "--threads", "1", "--peer", coordinator.address)
        return stack.enter_context(daemon("worker", *words, "--name", name, env=env, log=tmp_path / f"{name}.log"))

    workers = {name: worker(name) for name in "ab"}
    wait_for(lambda: node_states(coordinator) == dict.fromkeys("ab", "healthy"))
    arguments = (
        "serve-model", str(folder), "--port", "0", "--coordinator", coordinator.address, "--max-batch", "64",
        "--queue", str(STREAMS), *how, "-v",
    )  # fmt: skip
    server = stack.enter_context(daemon("coord", *arguments, env=env, log=tmp_path / "server.log"))

    def mischief() -> None:
        os.kill(workers["a"].process.pid, signal.SIGKILL)
        worker("c")
        wait_for(lambda: node_states(coordinator).get("c") == "healthy")

    try:
        heard = asyncio.run(asyncio.wait_for(all_users(server.ready["url"], wanted, mischief), HANGS_S))
    except BaseException:
        print(server.log.read_text()[-20_000:])
        raise
    print(f"\n{how[1]}: {heard.told()}")
    assert server.stop(signal.SIGTERM) == 0, server.log.read_text()


async def all_users(url: str, wanted: list[str], mischief: Any) -> Heard:
    """Users who ask until each had a stream that began after the mischief; it comes once half of them hear theirs."""
    heard, over = Heard(), asyncio.Event()
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=HANGS_S) as client,
        asyncio.TaskGroup() as users,
    ):
        for user in range(STREAMS):
            users.create_task(one_user(client, user, wanted[user], heard, over))
        while len(heard.under_way) < STREAMS // 2:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(mischief)
        over.set()
    assert heard.streams >= 2 * STREAMS
    return heard


async def one_user(client: openai.AsyncOpenAI, user: int, wanted: str, heard: Heard, over: asyncio.Event) -> None:
    last = False
    while not last:
        last, began_s, said = over.is_set(), time.monotonic(), ""
        async for chunk in await client.completions.create(
            model="llama", stream=True, stream_options={"include_usage": True}, **asking(user)
        ):
            if chunk.choices and not said and chunk.choices[0].text:
                heard.first_s.append(time.monotonic() - began_s)
            said += chunk.choices[0].text if chunk.choices else ""
            if len(said) > 20:
                heard.under_way.add(user)
            if chunk.usage is not None:
                heard.tokens += chunk.usage.completion_tokens
        assert said == wanted, f"user {user} heard {said!r} in place of {wanted!r}"
        heard.under_way.discard(user)
        heard.streams += 1
