"""Makes tests/golden/generation.json: what transformers says after prompts, greedily, with the models of huggingface/.

python tests/golden/make_generation_reference.py        needs torch and transformers, which the tests do not
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
NAMES = (
    "gpt2", "llama", "llama3", "mistral", "qwen2", "qwen2-windows", "qwen3", "bloom", "gemma", "gemma2", "gemma3",
    "gpt-neox", "gpt-neox-serial", "gpt-oss", "mixtral", "opt", "opt-norms-after", "phi3", "phi3-long", "qwen2-moe",
    "qwen3-moe",
)  # fmt: skip
LENGTHS = (1, 4, 7, 9)
TOKENS = 32


def main() -> None:
    found = {}
    for place, name in enumerate(NAMES):
        model = transformers.AutoModelForCausalLM.from_pretrained(HERE / "huggingface" / name).eval()
        positions = getattr(model.config, "max_position_embeddings", 64)
        rng = np.random.default_rng(place)
        prompts = [rng.integers(2, 50, length).tolist() for length in LENGTHS]
        said = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            with torch.no_grad():
                whole = model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=False,
                    max_new_tokens=min(TOKENS, positions + 1 - len(prompt)),
                    eos_token_id=None, pad_token_id=0,
                )  # fmt: skip
            said.append(whole[0, len(prompt) :].tolist())
        found[name] = {"prompts": prompts, "tokens": said}
    (HERE / "generation.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
