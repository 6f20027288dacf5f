"""Makes tests/golden/gguf: small random models as GGUF files, and what transformers makes of them.

python tests/golden/make_gguf_reference.py        needs torch, transformers and accelerate, which the tests do not
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.cases.gguf_files import GOLDEN, IDS, write_model

FOLDER = Path(__file__).with_name("gguf")


def main() -> None:
    logits = {}
    for name, how in GOLDEN.items():
        write_model(FOLDER / f"{name}.gguf", **how)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            FOLDER, gguf_file=f"{name}.gguf", attn_implementation="eager", dtype=torch.float32
        )
        with torch.no_grad():
            logits[name] = model.eval()(torch.from_numpy(IDS)).logits.numpy()
    np.savez(FOLDER / "logits.npz", **logits)


if __name__ == "__main__":
    main()
