"""Makes tests/golden/gguf: small random models as GGUF files, and what transformers makes of them.

python tests/golden/make_gguf_reference.py        needs torch, transformers and accelerate, which the tests do not
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.cases.gguf_files import GOLDEN, IDS, write_model
from support.cases.gguf_tokenizers import CHAT, REFERENCES, TEXTS

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
    told = {name: tokens_of(FOLDER / f"{name}.gguf") for name, write in REFERENCES.items() if write_vocabulary(name)}
    (FOLDER / "tokens.json").write_text(json.dumps(told, indent=1) + "\n")


def write_vocabulary(name: str) -> bool:
    """A file of a tokenizer without tensors, as llama.cpp's `--vocab-only` makes."""
    architecture, write = REFERENCES[name]
    file = gguf.GGUFWriter(str(FOLDER / f"{name}.gguf"), architecture)
    write(file)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return True


def tokens_of(path: Path) -> dict[str, object]:
    """What transformers makes of the texts and the conversation."""
    own = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ids = [own(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    chat = own.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    return {"ids": ids, "texts": [own.decode(each) for each in ids], "chat": chat}


if __name__ == "__main__":
    main()
