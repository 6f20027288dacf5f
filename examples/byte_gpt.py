"""A GPT whose tokens are bytes learns this project's own documents on workers, and then goes on with a text.

The network is a GPT-2 of random weights in a folder, as `mesh.load` reads it.  For the training two workers have a half
of the layers each, and two more the same: rows go through them in small batches, half of them here and half there.  For
the writing the layers are cut over the workers, and their keys and values stay where they are made.

python examples/byte_gpt.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import mesh
from mesh import DistributedTrainer, Mesh, nn, optim, training
from mesh.models.safetensors import save_safetensors

DOCUMENTS = Path(__file__).parents[1] / "docs"
WIDTH, LAYERS, HEADS, LENGTH = 64, 2, 4, 32
STEPS, ROWS, RATE = 45, 24, 1e-2
STAGES, COLUMNS = 2, 2
LOSS_MAX = 3.15  # nats per byte
PROMPT, HOW = b"A worker ", {"max_new_tokens": 22, "temperature": 0.6, "seed": 1}


class WorkerCount(training.Callback):
    """How many workers a step had."""

    workers = 0

    def on_workers(self, workers: int) -> None:
        self.workers = workers


def documents() -> Any:
    """All of them as bytes, u8 (n,)."""
    return np.frombuffer(b"\n".join(file.read_bytes() for file in sorted(DOCUMENTS.glob("*.md"))), np.uint8)


def untrained() -> mesh.Model:
    """A GPT-2 with first weights: random matrices, offsets of 0, gains of 1."""
    rng = np.random.default_rng(0)
    matrices = {"wte": (256, WIDTH), "wpe": (LENGTH, WIDTH)}
    norms = ["ln_f"]
    for layer in (f"h.{number}." for number in range(LAYERS)):
        norms += [f"{layer}ln_1", f"{layer}ln_2"]
        matrices |= {f"{layer}attn.c_attn": (WIDTH, 3 * WIDTH), f"{layer}attn.c_proj": (WIDTH, WIDTH),
                     f"{layer}mlp.c_fc": (WIDTH, 4 * WIDTH), f"{layer}mlp.c_proj": (4 * WIDTH, WIDTH)}  # fmt: skip
    weights = {f"{name}.weight": rng.normal(0, 0.1, shape) for name, shape in matrices.items()}
    weights |= {f"{name}.bias": np.zeros(shape[1]) for name, shape in matrices.items() if name.startswith("h.")}
    weights |= {f"{name}.{kind}": np.full(WIDTH, gain) for name in norms for kind, gain in (("weight", 1), ("bias", 0))}
    settings = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_embd": WIDTH,
                "n_layer": LAYERS, "n_head": HEADS, "n_positions": LENGTH}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(settings))
        named = {f"transformer.{name}": array.astype(np.float32) for name, array in weights.items()}
        save_safetensors(named, Path(folder, "model.safetensors"))
        return mesh.load(folder)


def main() -> float:
    text, model = documents(), untrained()
    places = np.random.default_rng(1).integers(0, len(text) - LENGTH, STEPS * ROWS)
    rows = text[places[:, None] + np.arange(LENGTH + 1)].astype(np.int32)
    chances = np.bincount(text, minlength=256)[text] / len(text)
    guessed = float(-np.log(chances).mean())  # by one who knows how frequent each byte is, and no more

    def loss(params: Any, rows: Any) -> Any:
        """One per row: the mean over its bytes."""
        losses = nn.cross_entropy(model.apply(params, rows[:, :-1]), rows[:, 1:], reduction="none")
        return losses.mean(axis=1)

    optimizer = optim.adam(optim.warmup_cosine(RATE, 15, STEPS))
    strategy = mesh.Pipeline(STAGES, micro_batches=4, schedule="1f1b", data=COLUMNS)
    trainer = DistributedTrainer(loss, dict(model.params), optimizer=optimizer, clip=1.0, strategy=strategy)
    with Mesh.builder().local(STAGES * COLUMNS, engine="cpu").node_timeout(20).build() as m:
        losses = trainer.distribute(m).fit(rows, batch_size=ROWS, callbacks=[counter := WorkerCount()]).losses
        learnt = model.trained(trainer.params)
        said = learnt.generate(list(PROMPT), **HOW, mesh=m, strategy="pipeline")

    assert counter.workers == STAGES * COLUMNS, counter.workers
    last = float(np.mean(losses[-5:]))
    assert last < LOSS_MAX < guessed, (last, guessed)
    assert said == learnt.generate(list(PROMPT), **HOW), "one process says something else"
    print(f"loss per byte {losses[0]:.2f} at first, {last:.2f} after {len(losses)} steps; "
          f"the frequencies of bytes alone give {guessed:.2f}")  # fmt: skip
    print(repr((PROMPT + bytes(said)).decode(errors="replace")))
    return last


if __name__ == "__main__":
    main()
