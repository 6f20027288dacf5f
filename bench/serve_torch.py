"""What `serve.py` asks transformers: `serve_torch.py FOLDER THREADS` reads lines of some {prompt, tokens}.

For each it goes on with the prompts greedily, one after the other, by `generate`, and prints {seconds, said} in a line.
"""

from __future__ import annotations

import json
import sys
import time

import tokenizers
import torch
import transformers


def main(folder: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    for line in sys.stdin:
        asked, said, began_s = json.loads(line), [], time.perf_counter()
        for text in asked:
            ids, tokens = torch.tensor([text["prompt"]]), text["tokens"]
            found = model.generate(
                ids, attention_mask=torch.ones_like(ids), min_new_tokens=tokens, max_new_tokens=tokens, do_sample=False
            )
            said.append(found[0, len(text["prompt"]) :].tolist())
        took_s = time.perf_counter() - began_s
        print(json.dumps({"seconds": took_s, "said": [tokenizer.decode(one) for one in said]}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
