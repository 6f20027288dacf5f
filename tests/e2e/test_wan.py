"""A mesh over the internet, by the time-out of the wan preset: long ways, narrow lines and stalls, and no false death.

`python tests/e2e/test_wan.py SECONDS` says what became of the calls of so many seconds.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.processes.commands import daemon, environment
from support.processes.fault_proxy import DOWN, UP, FaultProxy
from support.processes.faults import WIDTH, EventTap, tower, weights
from support.processes.site import WORKER

from mesh import Mesh
from wire.security.user_secret import user_secret

DELAY_S, BYTES_PER_S = 0.08, 2.5e6  # one way; 20 Mbit/s
LOOK_S, STALLS = 0.1, 0.01  # every tenth of a second one in a hundred lines stands still
STALL_S = (0.3, 3.0)  # for so long
WORDS = (*WORKER, "--mesh", "wan", "--name")


@contextmanager
def stalling(proxies: list[FaultProxy], seed: int) -> Iterator[Counter[str]]:
    """Each direction of each line stands still now and then, on its own; how often."""
    chance, over, done = random.Random(seed), threading.Event(), Counter[str]()
    until_s: dict[tuple[FaultProxy, str], float] = {}

    def spoil() -> None:
        while not over.wait(LOOK_S):
            for proxy in proxies:
                for way in (UP, DOWN):
                    line = proxy, way
                    if until_s.get(line, float("inf")) <= time.monotonic():
                        del until_s[line]
                        proxy.change(way, stalled=False)
                    elif line not in until_s and chance.random() < STALLS:
                        until_s[line] = time.monotonic() + chance.uniform(*STALL_S)
                        proxy.change(way, stalled=True)
                        done["stalls"] += 1

    thread = threading.Thread(target=spoil)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()
        for proxy in proxies:
            proxy.change(stalled=False)


def calls(folder: Path, seconds: float, seed: int = 0) -> Counter[str]:
    """What became of the calls that a program made of two workers far away; each ends before the next begins."""
    layers, x = weights(0), np.random.default_rng(0).standard_normal((8, WIDTH)).astype(np.float32)
    with ExitStack() as stack:
        builder, proxies = Mesh.builder().mesh("wan").preset("wan"), []
        for name in "ab":
            env = environment(folder, LOGNAME=f"elsewhere-{name}")  # another user, and so no shared memory
            worker = stack.enter_context(daemon(*WORDS, name, env=env, log=folder / f"{name}.log"))
            proxies.append(
                stack.enter_context(FaultProxy(("127.0.0.1", worker.ready["port"]), seed, secret=user_secret()))
            )
            proxies[-1].change(delay_s=DELAY_S, bytes_per_s=BYTES_PER_S)
            builder = builder.node(proxies[-1].address)
        mesh = stack.enter_context(builder.build())
        tap, expected = EventTap(mesh), mesh.run(tower, layers, x, mode="off")
        held = mesh.put(layers)
        done = stack.enter_context(stalling(proxies, seed))
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s or not done["right"]:
            answer = mesh.submit(tower, held, x, strategy="pipeline").result(timeout_s=60.0)
            done["right" if np.array_equal(answer, expected) else "wrong"] += 1
            assert mesh.report().workers.keys() == {"a", "b"}
        for proxy in proxies:
            passed = sum(pipe.passed for connection in proxy.connections for pipe in connection.pipes.values())
            assert passed > sum(layer.nbytes for layer in layers) / 4, "what was sent did not go by the line"
        tap.wait(lambda event: bool(done.update([event["kind"]])), 0.1)
    return done


@pytest.mark.long
def test_calls_over_long_narrow_and_stalling_lines_are_right_and_nobody_dies(tmp_path: Path) -> None:
    done = calls(tmp_path, 60.0)
    assert done["right"] >= 10 and done["stalls"] >= 5, done
    assert not done["wrong"] and not done["dead"], done


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        done = calls(Path(folder), seconds)
    print(", ".join(f"{what} {count}" for what, count in sorted(done.items())))


if __name__ == "__main__":
    main(float(sys.argv[1]))
