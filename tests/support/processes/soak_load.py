"""One kind of load on the mesh of a coordinator daemon, until it is told to end: `soak_load.py KIND ADDRESS [NAME]`.

Calls, jobs and texts are compared here with what numpy says; losses of training are told, for whoever started this to
compare.  One line per answer that was right: the kind, and what there is to tell of it.  A wrong one ends the program.
Once stdin is closed it ends in good order.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from support.cases.language import gpt2_folder
from support.cases.training import batch, first_state, train
from support.processes.faults import WIDTH, tower, weights

import mesh
from mesh import InferenceServer, Mesh, trace
from mesh.backends.enrolment import client_membership
from mesh.backends.remote import Remote
from mesh.errors import ConnectFailed, InputError, NotDurable
from wire.addresses import parse_address

ROUNDING = 1e-5  # of 12 layers of sums of 256 products; 1e-6 is what was seen
ROWS = (1, 7, 64, 1024)
STRATEGIES = ("pipeline", "auto", "single")
SIDE = 64  # of a job's matrix, which travels as a file
REST_S = {"calls": 0.25, "jobs": 0.5, "training": 0.2, "texts": 0.5}  # between two of them
FULL_S = 1.0  # until what a full disk refused is asked again
OLDER = 40  # of the last jobs one is asked for again; results are kept for some minutes
PROMPTS = ([5, 6, 7], list(range(100, 130)))
TOKENS = 24
HOW = {"temperature": 0.8, "top_k": 50, "seed": 7, "max_new_tokens": TOKENS}
STEPS_AHEAD = 2
CONNECTS_MAX = 30

over, saying = threading.Event(), threading.Lock()


def say(*words: object) -> None:
    with saying:
        print(*words, flush=True)


def durable(ask: Callable[[], Any]) -> Any:
    """Ask again while the disk of the journal is full: that is refused, and told."""
    while True:
        try:
            return ask()
        except NotDurable:
            say("full")
            time.sleep(FULL_S)


def connected(address: str) -> Mesh:
    """A program that finds no coordinator as it begins asks again: that one may be about to start."""
    for _ in range(CONNECTS_MAX):
        try:
            return Mesh.builder().node(address).build()
        except ConnectFailed:
            time.sleep(FULL_S)
    return Mesh.builder().node(address).build()


def calls(address: str) -> None:
    layers, rng = weights(1), np.random.default_rng()
    with connected(address) as own:
        held = own.put(layers)
        for number in itertools.count():
            if over.wait(REST_S["calls"]):
                return
            x = rng.standard_normal((ROWS[number % len(ROWS)], WIDTH)).astype(np.float32)
            expected = x
            for layer in layers:
                expected = np.tanh(expected @ layer)
            strategy = STRATEGIES[number % len(STRATEGIES)]
            found = durable(lambda x=x, strategy=strategy: own.run(tower, held, x, strategy=strategy))
            np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)  # a split product rounds in another way
            say("calls", number)


def scaled(x: Any, by: Any) -> Any:
    return {"y": x * 3 + by, "sum": (x * 3 + by) @ by}


def jobs(address: str) -> None:
    asyncio.run(_jobs(address))


async def _jobs(address: str) -> None:
    chance, done = random.Random(), list[tuple[str, int]]()
    graph = trace(scaled, *_values(0))
    name, home = os.environ["MESH_NAME"], str(Path(os.environ["XDG_STATE_HOME"], "graph-mesh"))
    connected(address).close()
    remote = await Remote.connect(name, *parse_address(address), client_membership(name, home))

    async def check(job: str, by: int) -> None:
        outputs, _ = await remote.result(job)
        x, add = _values(by)
        np.testing.assert_array_equal(outputs["y"], x * 3 + add)
        np.testing.assert_array_equal(outputs["sum"], (x * 3 + add) @ add)

    for number in itertools.count():
        await asyncio.sleep(REST_S["jobs"])
        if over.is_set():
            break
        job, by = f"soak-{os.getpid()}-{number}", chance.randrange(1000)
        x, add = _values(by)
        while True:
            try:
                await remote.submit(graph, {"x": x, "by": add}, {}, detach=number % 3 > 0, job=job)
                await check(job, by)
            except NotDurable:
                say("full")
                await asyncio.sleep(FULL_S)
                continue
            break
        done = [*done, (job, by)][-OLDER:]
        await check(*chance.choice(done))
        say("jobs", number)
    await remote.close()


def _values(by: int) -> tuple[Any, Any]:
    return np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE) % 7, np.full((SIDE, SIDE), by % 5, np.float32)


def training(address: str, name: str) -> None:
    with connected(address) as own:
        try:
            session = own.attach(name, take=True)
        except InputError:
            session = own.session(
                train, first_state(), *batch(0), name=name, copies="buddy", every=5, strategy="pipeline"
            )
        answered = asked = session.steps_done
        waiting: list[Any] = []
        while not over.wait(REST_S["training"]):
            while len(waiting) < STEPS_AHEAD:
                waiting.append(session.step(*batch(asked)))
                asked += 1
            say("training", answered, float(waiting.pop(0).result()).hex())
            answered += 1
        for step in waiting:
            say("training", answered, float(step.result()).hex())
            answered += 1
        session.close()


def texts(address: str) -> None:
    folder = gpt2_folder(Path(sys.argv[3]))
    model = mesh.load(folder)
    expected = [model.generate([prompt], **HOW)[0] for prompt in PROMPTS]
    broken: list[BaseException] = []

    def stream(server: InferenceServer, number: int) -> None:
        try:
            while not over.is_set():
                for place, token in enumerate(server.generate("model", PROMPTS[number], stream=True, **HOW)):
                    assert token == expected[number][place], f"token {place} of text {number} is {token}"
                    say("texts", number, place)
                assert place + 1 == len(expected[number]), f"text {number} ended after {place + 1} tokens"
                over.wait(REST_S["texts"])
        except BaseException as error:
            broken.append(error)
            over.set()

    with connected(address) as own, InferenceServer(own) as server:
        server.load_model("model", folder)
        streams = [threading.Thread(target=stream, args=(server, number)) for number in range(len(PROMPTS))]
        for each in streams:
            each.start()
        for each in streams:
            each.join()
    if broken:
        raise broken[0]


KINDS: dict[str, Callable[..., None]] = {"calls": calls, "jobs": jobs, "training": training, "texts": texts}


if __name__ == "__main__":
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    KINDS[sys.argv[1]](*sys.argv[2:3], *(sys.argv[3:] if sys.argv[1] == "training" else ()))
