"""Coded inference: a network in four shares on four workers, of which any two suffice; two are killed in the middle.

python examples/coded_inference.py
"""

import os
import signal
import threading
import time

import numpy as np

import mesh
from mesh import nn, tree

WIDTH, HIDDEN, REQUESTS = 96, 251, 8  # what k does not divide is filled up


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))


def main() -> None:
    block = nn.TransformerBlock.init(mesh.numpy.random.key(0), WIDTH, 4, hidden=HIDDEN, causal=True)
    model = tree.map(np.asarray, block)
    requests = np.random.default_rng(0).standard_normal((REQUESTS, 16, WIDTH)).astype(np.float32)
    expected = [np.asarray(model(x)) for x in requests]

    builder = mesh.Mesh.builder().local(4, engine="cpu").node_timeout(20)  # a busy machine is not a dead one
    with builder.build() as m:
        coding = mesh.Coding(m, n=4, k=2)
        coded = coding.layers(model)
        seconds, errors = [], []
        for number, x in enumerate(requests):
            if number == REQUESTS // 2:  # two die in the middle of this one
                pids = [node.pid for node in m.nodes if node.name in coding.workers[1:3]]
                killer = threading.Timer(0.01, kill, [pids])
                killer.start()
            if number == REQUESTS - 1:  # the last one is asked of two
                killer.join()
                while len(left := [node.name for node in m.nodes if node.state == "healthy"]) > 2:
                    time.sleep(0.05)
            began = time.perf_counter()
            found = np.asarray(coded(x))
            seconds.append(time.perf_counter() - began)
            errors.append(float(np.abs(found - expected[number]).max() / np.abs(expected[number]).max()))

    assert max(errors) <= 1e-4, errors
    assert len(left) == 2, left
    print(f"worst condition number of the code {coding.code.condition:.1f}, largest relative error {max(errors):.1e}")
    usual, hit = np.median(seconds) * 1e3, seconds[REQUESTS // 2] * 1e3
    print(f"a request took {usual:.0f} ms, the one with two deaths {hit:.0f} ms")


if __name__ == "__main__":
    main()
