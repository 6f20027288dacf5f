"""A program that serves texts until it is told to end, for tests that take its coordinator away: `served_texts.py
MODEL ADDRESS`.

Streams of a model go on at the same time, on the workers of the coordinator at ADDRESS; one that is over begins anew.
One line per token: the stream, the token's place in its text, the token, and the monotonic clock.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesh
from mesh import InferenceServer, Mesh

PROMPTS = ([5, 6, 7], list(range(100, 130)), [9], [40, 41])
TOKENS = 100
HOW = {"temperature": 0.8, "top_k": 50, "seed": 7, "max_new_tokens": TOKENS}


def main(folder: str, address: str) -> None:
    over, printing = threading.Event(), threading.Lock()

    def stream(server: InferenceServer, number: int) -> None:
        while not over.is_set():
            for place, token in enumerate(server.generate("model", PROMPTS[number], stream=True, **HOW)):
                with printing:
                    print(number, place, token, time.monotonic(), flush=True)
                if over.is_set():
                    return

    with Mesh.builder().node(address).build() as own, InferenceServer(own) as server:
        server.load_model("model", mesh.load(folder))
        streams = [threading.Thread(target=stream, args=(server, number)) for number in range(len(PROMPTS))]
        for each in streams:
            each.start()
        sys.stdin.read()
        over.set()
        for each in streams:
            each.join()
        print("over", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
