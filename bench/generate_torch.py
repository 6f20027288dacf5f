"""What `generate.py` asks torch: it reads {folder, prompts, tokens, runs} and tells tokens per second, and the tokens.

Greedy, one thread, transformers' own cache; the prompt's pass is not counted.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
import transformers


def main() -> None:
    asked = json.loads(sys.stdin.read())
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(asked["folder"]).eval()
    rates, said = {}, []
    for count in (1, len(asked["prompts"])):
        found = [run(model, asked["prompts"][:count], asked["tokens"]) for _ in range(asked["runs"])]
        said, rates[count] = found[-1][0], statistics.median(rate for _, rate in found)
    print(json.dumps({"rates": rates, "said": said}))


def run(model: Any, prompts: Any, tokens: int) -> tuple[list[list[int]], float]:
    """Greedy tokens, and how many per second after the first."""
    with torch.no_grad():
        found = model(torch.tensor(prompts), use_cache=True)
        chosen = [found.logits[:, -1].argmax(-1)]
        began_s = time.perf_counter()
        for _ in range(tokens - 1):
            found = model(chosen[-1][:, None], past_key_values=found.past_key_values, use_cache=True)
            chosen.append(found.logits[:, -1].argmax(-1))
        took_s = time.perf_counter() - began_s
    return torch.stack(chosen, 1).tolist(), len(prompts) * (tokens - 1) / took_s


if __name__ == "__main__":
    main()
