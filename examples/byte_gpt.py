"""A GPT whose tokens are bytes learns this project's own documents on workers, and then goes on with a text.

The network is a GPT-2 of random weights in a folder, as `mesh.load` reads it.  For the training each worker computes a
share of the rows of every step.  For the writing the layers are cut over the workers, and their keys and values stay
where they are made.

python examples/byte_gpt.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import mesh
from mesh import DistributedTrainer, Mesh, nn, optim
from mesh.safetensors import save_safetensors

DOCUMENTS = Path(__file__).parents[1] / "docs"
WIDTH, LAYERS, HEADS, LENGTH = 64, 2, 4, 32
STEPS, ROWS, RATE = 70, 24, 1e-2
LOSS_MAX = 3.0  # nats per byte
PROMPT, NEW = b"A worker ", 22


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

    optimizer = optim.adam(optim.warmup_cosine(RATE, 20, STEPS))
    trainer = DistributedTrainer(loss, dict(model.params), optimizer=optimizer, clip=1.0, strategy=mesh.DataParallel())
    with Mesh.builder().local(2, engine="cpu").node_timeout(20).build() as m:
        losses = trainer.distribute(m).fit(rows, batch_size=ROWS).losses
        learnt = model.trained(trainer.params)
        said = learnt.generate(list(PROMPT), max_new_tokens=NEW, mesh=m, strategy="pipeline")
        drawn = learnt.generate(list(PROMPT), max_new_tokens=NEW, temperature=0.7, seed=1, mesh=m, strategy="pipeline")

    last = float(np.mean(losses[-5:]))
    assert last < LOSS_MAX < guessed, (last, guessed)
    assert said == learnt.generate(list(PROMPT), max_new_tokens=NEW), "one process says something else"
    print(f"loss per byte {losses[0]:.2f} at first, {last:.2f} after {len(losses)} steps; "
          f"who knows the frequencies of bytes alone has {guessed:.2f}")  # fmt: skip
    for what in (said, drawn):
        print(repr((PROMPT + bytes(what)).decode(errors="replace")))
    return last


if __name__ == "__main__":
    main()
