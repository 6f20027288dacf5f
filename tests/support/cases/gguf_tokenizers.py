"""Small tokenizers as the families of models have them, and how a converter writes them into a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINK = "<think>"  # a token that is found in texts, and is part of them
WORDS = 700
TEXTS = (
    "Hello, how are you?",
    "hello",
    "",
    " ",
    "  ",
    "   leading",
    "trailing   ",
    "two  spaces",
    "\t\ttabs\tinside",
    "a\nb",
    "a\n\nb\n\n\n",
    "\r\nwindows\r\n",
    " \n \n ",
    "It's John's, they'LL we've I'M",
    "don’t",
    "CamelCaseWords and snake_case",
    "0",
    "12",
    "123",
    "1234",
    "1234567890",
    "3.14159 1,000,000 -7e-3",
    "٣٤٥ ²³ ½ Ⅷ",
    "¿Qué tal? ¡Adiós!",
    "Äpfel, Öl, Übermut, ß",
    "e\u0301 a\u0308 n\u0303 Z\u0351\u036b\u0343\u036a",
    "Привет, как дела?",
    "Γειά σου Κόσμε",
    "שלום עולם",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "你好，世界！",
    "こんにちは世界",
    "안녕하세요 세계",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠜎𠜱",
    "🙂 👍🏽 👩‍👩‍👧‍👦 🇩🇪",
    "a🙂b",
    "\u200bzero\u200dwidth\ufeff",
    "nul\x00byte \x7f \x1b[0m",
    "def f(x):\n    return x ** 2  # squared\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i]; }",
    "<html><body>&nbsp;</body></html>",
    "https://example.com/path?q=1&r=%20#top",
    "SELECT * FROM t WHERE a >= 'x';",
    '{"key": [1, 2.5, null]}',
    "!!!???...---===",
    "<|im_start|>user\nHello<|im_end|>\n",
    "text <|im_end|> text",
    "<|im_end|",
    "<think>hm</think>",
    "<|endoftext|><|endoftext|>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "the the the theatre",
    "naïve façade coöperate",
    "x" * 300,
    "\u2581under\u2581score",
)
CHAT = [
    {"role": "system", "content": "You are brief."}, {"role": "user", "content": "What is 2 + 2? ½ 🙂"},
    {"role": "assistant", "content": "4"}, {"role": "user", "content": "And naïve façades?"},
]  # fmt: skip
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)


def split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
ORIGINALS: dict[str, list[Any]] = {  # as tokenizer.json of a model of the family has it, by tokenizer.ggml.pre
    "gpt-2": [GPT2],
    "llama-bpe": [split(LLAMA3), BYTES],
    "dbrx": [split(LLAMA3), BYTES],
    "qwen2": [split(LLAMA3.replace("{1,3}", "")), BYTES],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), GPT2],
    "deepseek-coder": [
        split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(CJK), pre_tokenizers.Digits(True), BYTES
    ],
    "deepseek-v3": [split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK3), BYTES],
    "tekken": [split(TEKKEN), BYTES],
    "falcon": [pre_tokenizers.Punctuation("contiguous"), GPT2, split("[0-9][0-9][0-9]")],
}  # fmt: skip
WHOLE = ("llama-bpe", "tekken")  # whose words that are tokens are not merged anew


def corpus() -> list[str]:
    return [*(GOLDEN / "chat_rendered.json").read_text("utf-8").splitlines(), *(text for text in TEXTS for _ in "ab")]


def byte_level(pre: str) -> tokenizers.Tokenizer:
    """A tokenizer that merges bytes, trained on the texts of the tests."""
    own = tokenizers.Tokenizer(models.BPE(ignore_merges=pre in WHOLE))
    own.pre_tokenizer = pre_tokenizers.Sequence(ORIGINALS[pre])
    own.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS - 1, special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    own.train_from_iterator(corpus(), trainer)
    own.add_tokens([AddedToken(THINK, special=False, normalized=False)])
    assert own.get_vocab_size() == WORDS
    return own


def sentence_pieces() -> dict[str, float]:
    """Pieces with their scores, as SentencePiece trains them: control tokens, bytes, then what was merged."""
    own = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    own.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *SPECIAL]
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS - 1, special_tokens=first, show_progress=False, limit_alphabet=150, max_token_length=12
    )
    own.train_from_iterator((text for text in corpus() if not any(each in text for each in first)), trainer)
    found = sorted(own.get_vocab().items(), key=lambda each: each[1])
    return {piece: 0.0 if number < len(first) else -float(number) for piece, number in [*found, (THINK, WORDS - 1)]}


def written(tokenizer: tokenizers.Tokenizer, pre: str, **more: Any) -> Callable[[gguf.GGUFWriter], None]:
    """Writes a tokenizer of bytes as llama.cpp's converter does."""
    told = json.loads(tokenizer.to_str())
    kinds = {each["content"]: 3 if each["special"] else 4 for each in told["added_tokens"]}
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)

    def write(file: gguf.GGUFWriter) -> None:
        file.add_tokenizer_model("gpt2")
        file.add_tokenizer_pre(pre)
        file.add_token_list(tokens)
        file.add_token_types([kinds.get(token, 1) for token in tokens])
        file.add_token_merges([" ".join(pair) for pair in told["model"]["merges"]])
        write_more(file, {"eos_token_id": 2, "bos_token_id": 0, **more})

    return write


def pieces_written(pieces: Mapping[str, float], **more: Any) -> Callable[[gguf.GGUFWriter], None]:
    """Writes pieces as llama.cpp's converter does."""

    def kind(piece: str) -> int:
        if piece == "<unk>":
            return 2
        if piece == THINK:
            return 4
        return 3 if piece in ("<s>", "</s>", *SPECIAL) else 6 if piece.startswith("<0x") else 1

    def write(file: gguf.GGUFWriter) -> None:
        file.add_tokenizer_model("llama")
        file.add_tokenizer_pre("default")
        file.add_token_list(list(pieces))
        file.add_token_scores(list(pieces.values()))
        file.add_token_types([kind(piece) for piece in pieces])
        write_more(file, {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **more})

    return write


def write_more(file: gguf.GGUFWriter, more: Mapping[str, Any]) -> None:
    """Further metadata: `chat_template` or keys of tokenizer.ggml; None leaves one out."""
    for name, value in more.items():
        write_value(file, "tokenizer.chat_template" if name == "chat_template" else f"tokenizer.ggml.{name}", value)


def write_value(file: gguf.GGUFWriter, key: str, value: Any) -> None:
    """One of the metadata, by the type of its value; None leaves it out."""
    if isinstance(value, bool):
        file.add_bool(key, value)
    elif isinstance(value, int):
        file.add_uint32(key, value)
    elif isinstance(value, float):
        file.add_float32(key, value)
    elif value is not None:
        file.add_string(key, value)


def template(name: str) -> str:
    return (GOLDEN / "chat_templates" / f"{name}.jinja").read_text("utf-8")


REFERENCES: dict[str, tuple[str, Callable[[gguf.GGUFWriter], None]]] = {  # what transformers reads: tests/golden/gguf
    "words-llama-bpe": ("llama", written(byte_level("llama-bpe"), "llama-bpe", chat_template=template("llama3"))),
    "words-qwen2": ("qwen2", written(byte_level("qwen2"), "qwen2", chat_template=template("qwen2.5"))),
    "words-gpt-2": ("llama", written(byte_level("gpt-2"), "gpt-2", chat_template=template("chatml"))),
    "words-tekken": ("llama", written(byte_level("tekken"), "tekken", chat_template=template("mistral-nemo"))),
    "pieces-phi3": ("phi3", pieces_written(sentence_pieces(), chat_template=template("phi3"))),
    "pieces-gemma": (
        "gemma2", pieces_written(sentence_pieces(), add_space_prefix=False, chat_template=template("zephyr"))
    ),
}  # fmt: skip
