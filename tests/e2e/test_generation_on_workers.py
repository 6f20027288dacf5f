"""Texts and requests over real workers: one is killed in the middle, and what is unloaded is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases.language import gpt2_folder
from support.processes.commands import COMES_TRUE_S, PATIENT_S
from support.processes.footprint import footprint
from support.processes.worker_process import children
from support.waiting import until

import mesh
import mesh.numpy as mnp
from mesh import InferenceServer, Mesh, nn
from mesh.inference import Generating, Sampling
from mesh.inference.drafting import Drafter


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_a_stage_killed_in_the_middle_changes_no_token(tmp_path: Path) -> None:
    model = mesh.load(gpt2_folder(tmp_path))
    prompts = [[5, 6, 7], list(range(100, 130)), [9]]
    how = {"temperature": 0.8, "top_k": 50, "seed": 7, "max_new_tokens": 40}
    expected = model.generate(prompts, **how)
    with Mesh.builder().local(3, engine="cpu").node_timeout(PATIENT_S).build() as workers:
        said: list[list[int]] = [[] for _ in prompts]
        for place, token in model.generate(prompts, mesh=workers, strategy="pipeline", stream=True, **how):
            said[place].append(token)
            if place == 0 and len(said[0]) == 10:
                os.kill(workers.nodes[1].pid, signal.SIGKILL)
        assert said == expected


def test_a_reproducible_mesh_of_native_workers_serves_batches_and_texts(tmp_path: Path) -> None:
    model, how = mesh.load(gpt2_folder(tmp_path)), {"temperature": 0.8, "seed": 7, "max_new_tokens": 6}
    prompts = [[5, 6, 7], list(range(100, 130)), [9], [5, 6, 7]]
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((200, 70)).astype(np.float32)
    rows = rng.standard_normal((16, 1, 200)).astype(np.float32)

    def layer(x: Any) -> Any:
        return nn.softmax(mnp.tanh(x @ weights))

    built = Mesh.builder().local(2, engine="native").node_timeout(PATIENT_S).reproducible().build()
    with built as own, InferenceServer(own) as server, ThreadPoolExecutor(16) as users:
        server.load_model("layer", layer, batched=True, max_batch=16, max_wait_ms=200)
        together = [*users.map(lambda row: server.infer("layer", row), rows)]
        assert server.loaded_models()[0].batches < len(rows)
        alone = [own.run(layer, row, strategy="single") for row in rows]
        assert [each.tobytes() for each in together] == [np.asarray(each).tobytes() for each in alone]
        server.load_model("gpt2", model)
        said = [*users.map(lambda prompt: server.generate("gpt2", prompt, **how), prompts)]
        assert said == [server.generate("gpt2", prompt, **how) for prompt in prompts]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_what_is_unloaded_is_gone_from_the_worker(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path, width=512, layers=3, vocabulary=512)
    with Mesh.builder().local(1, engine="cpu").node_timeout(PATIENT_S).build() as one:
        pid = one.nodes[0].pid
        pids = [pid, *children(pid)]

        def held_mib() -> float:
            return sum(footprint(each).rss_kib for each in pids) / 1024

        held: list[float] = []
        for _ in range(2):
            with InferenceServer(one) as server:
                server.load_model("gpt2", folder, max_batch=2)
                pieces = server.generate("gpt2", [1, 2, 3], max_new_tokens=20, stream=True)
                next(pieces)
                assert len(server.generate("gpt2", [4, 5], max_new_tokens=3)) == 3  # the batch has moved, for two
                assert len(list(pieces)) == 19
                assert server.infer("gpt2", np.zeros((1, 4), np.int32)).shape == (1, 4, 512)
                (model,) = server.loaded_models()
                loaded_mib = held_mib()
                server.unload_model("gpt2")
                freed_mib = 0.8 * model.weights_bytes / 2**20
                asyncio.run(until(lambda below=loaded_mib - freed_mib: held_mib() < below, COMES_TRUE_S))  # at once
                assert freed_mib > 25
                asyncio.run(until(lambda: all(held_mib() - before < 10 for before in held), COMES_TRUE_S))
                held.append(held_mib())


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_a_request_outlives_a_worker(tmp_path: Path) -> None:
    model, ids = mesh.load(gpt2_folder(tmp_path)), np.arange(12, dtype=np.int32).reshape(2, 6)
    wanted = np.asarray(model(ids))
    two = Mesh.builder().local(2, engine="cpu").node_timeout(PATIENT_S)
    with two.build() as workers, InferenceServer(workers) as server:
        server.load_model("gpt2", model, strategy="pipeline")
        np.testing.assert_allclose(server.infer("gpt2", ids), wanted, rtol=1e-4, atol=1e-4)
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(server.infer, "gpt2", ids) for _ in range(8)]
            os.kill(workers.nodes[0].pid, signal.SIGKILL)
            for each in asked:
                np.testing.assert_allclose(each.result(COMES_TRUE_S), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
@pytest.mark.parametrize("victim", ["drafter", "stage"])
def test_texts_outlive_the_worker_of_their_drafter_and_stages_with_a_drafter(tmp_path: Path, victim: str) -> None:
    model = mesh.load(gpt2_folder(tmp_path))
    wanted = model.generate([5, 6, 7], max_new_tokens=200, temperature=0.8, top_k=50, seed=7, ends=())

    async def killed(own: mesh.AsyncMesh, pids: dict[str, int]) -> list[int]:
        """The tokens of a text whose drafter's worker, or one of its own, dies in the middle."""
        target, drafts = list(pids)[:2]
        only = {name: mesh.DeviceMap().layer("", name).text for name in pids}
        drafter = Drafter(own, model, strategy=only[drafts], adaptive=False)
        strategy = only[target] if victim == "drafter" else "pipeline"
        batch = Generating(own, model, strategy=strategy, drafter=drafter)
        while not batch.accepted:  # a drafter on a busy machine may come too late for a whole text
            async for _ in batch.begin([5, 6, 7], 200, Sampling(0.8, 50, seed=7), ()):
                pass
        stream = batch.begin([5, 6, 7], 200, Sampling(0.8, 50, seed=7), ())
        tokens = [await anext(stream)]
        os.kill(pids[drafts if victim == "drafter" else target], signal.SIGKILL)
        tokens += [token async for token in stream]
        assert batch.rebuilt == (0 if victim == "drafter" else 1)
        assert batch.accepted == batch.drafted, "what draws with the same noise is always right"
        await batch.close()
        return tokens

    with Mesh.builder().local(3, engine="cpu").node_timeout(PATIENT_S).build() as workers:
        assert workers.wait(killed(workers.on_loop, {node.name: node.pid for node in workers.nodes})) == wanted


def test_native_workers_that_promise_bits_say_the_same_with_a_drafter(tmp_path: Path) -> None:
    model, draft = (mesh.load(gpt2_folder(tmp_path / name, layers=count)) for name, count in (("a", 3), ("b", 1)))
    how = {"temperature": 0.8, "seed": 7, "max_new_tokens": 60, "ends": ()}
    prompts = [[5, 6, 7], list(range(100, 130)), [9], [5, 6, 7, 8]]
    built = Mesh.builder().local(2, engine="native").node_timeout(PATIENT_S).reproducible().build()
    with built as own, InferenceServer(own) as server, ThreadPoolExecutor(4) as users:
        server.load_model("alone", model)
        server.load_model("drafted", model, draft=draft, draft_on=own.nodes[1].name)
        for name in ("alone", "drafted"):
            said = [*users.map(lambda prompt, name=name: server.generate(name, prompt, **how), prompts)]
            assert said == [server.generate("alone", prompt, **how) for prompt in prompts]
