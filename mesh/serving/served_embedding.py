"""Served embedding: an encoder whose last layer, averaged over the tokens of a text, is the text's embedding.

Mean pooling and normalisation are those of Sentence-BERT (Reimers and Gurevych, 2019).  They are computed where the
model is: a text comes back as one row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError, Unsupported
from wire.policy.strategies import text_of
from wire.system.tasks import together

from .. import numpy as mnp
from ..client.async_mesh import AsyncMesh
from ..client.plan_preview import PlanPreview
from ..core.array import Array
from ..inference.server import AsyncInferenceServer
from ..inference.settings import Options
from ..inference.tokenizer import Tokenizer
from ..models.decoder import EncoderMetadata
from ..models.model import Model
from ..util.json_file import read_json, read_object
from .admission import Admission
from .api_error import ApiError, wrong
from .metrics import Meters, Reading
from .model_memory import ModelMemory, shares_of
from .residence import Keep, Residence, Stay
from .served_text import ModelFacts

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)  # padded lengths; each is one graph
HIDDEN = "last_hidden_state"
TEXTS_MAX = 2048  # of one request
NAME = "encoder"
Embedding = tuple[Tokenizer, tuple[bool, bool], int]  # whether by the mean, whether normalised; the most tokens


class ServedEmbedding:
    """An encoder that is served.  `tokens_max` is how long a text may be."""

    def __init__(
        self,
        facts: ModelFacts,
        server: AsyncInferenceServer,
        tokenizer: Tokenizer,
        tokens_max: int,
        admission: Admission,
        load: Callable[[Residence], Awaitable[None]],
        gone: Callable[[Residence], None],
        meters: Meters,
        keep_s: float | None = None,
    ) -> None:
        self.facts = facts
        self.residence = Residence(facts.name, self._load, self._unload, keep_s)
        self.successor: ServedEmbedding | None = None  # what takes requests in its place, once it is being replaced
        self.tokenizer = tokenizer
        self.admission = admission
        self.tokens_max = tokens_max
        self._server, self._load_encoder, self._gone, self._meters = server, load, gone, meters
        self._positions_max = facts.positions_max or LENGTHS[-1]

    async def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        client: str,
        cut: bool = False,
        keep_s: float | Keep | None = Keep.AS_EVER,
    ) -> tuple[NDArray[np.float32], int]:
        """The embeddings f32 (texts, width) and the number of tokens; `cut` shortens texts that are too long.

        The model stays on the workers for `keep_s` (None: as long as the server).

        ApiError 429 at once if too many requests wait, 400 for a text that is empty or too long, 503 if the model takes
        too long to load.
        """
        if self.successor is not None:
            return await self.successor.embed(texts, client, cut, keep_s)
        if not 0 < len(texts) <= TEXTS_MAX:
            raise wrong(f"input has 1 to {TEXTS_MAX} texts, got {len(texts)}", "input")
        self.admission.check_room()
        tokens = await asyncio.to_thread(lambda: [self._tokens(text, place, cut) for place, text in enumerate(texts)])
        stay = self.residence.enter(keep_s)
        try:
            return await self._embedded(tokens, client, stay)
        finally:
            stay.end()

    async def _embedded(
        self, tokens: Sequence[Sequence[int]], client: str, stay: Stay
    ) -> tuple[NDArray[np.float32], int]:
        turn = await self.admission.turn(client)
        try:
            await stay.ready()
            rows = await together(self._server.infer(NAME, *self._padded(ids)) for ids in tokens)
        finally:
            turn.end()
        count = sum(len(ids) for ids in tokens)
        self._meters.add("prompt_tokens_total", count, model=self.facts.name)
        return np.concatenate(rows), count

    def readings(self) -> list[Reading]:
        """What the model does now, for metrics."""
        there = int(self.residence.there)
        return [*self.admission.readings(self.facts.name), ("model_loaded", {"model": self.facts.name}, there)]

    async def close(self) -> None:
        """End every request, and free what the workers hold."""
        try:
            await self.residence.close()
        finally:
            await self._server.close()

    async def _load(self) -> None:
        await self._load_encoder(self.residence)

    async def _unload(self) -> None:
        try:
            if self._server.loaded_models():
                await self._server.unload_model(NAME)
        finally:  # counted still, it would be asked again and again to make way
            self._gone(self.residence)

    def _tokens(self, text: str | Sequence[int], place: int, cut: bool) -> list[int]:
        ids = self.tokenizer.ids(text) if isinstance(text, str) else list(text)
        if not ids:
            raise wrong(f"input[{place}] is empty", "input")
        if not all(0 <= token < self.tokenizer.size for token in ids):
            raise wrong(
                f"input[{place}] has a token that the model does not have: it has {self.tokenizer.size}", "input"
            )
        if len(ids) > self.tokens_max and not cut:
            raise ApiError(
                400,
                f"input[{place}] has {len(ids)} tokens, and the model reads {self.tokens_max}: shorten it",
                code="context_length_exceeded",
                param="input",
            )
        return ids if len(ids) <= self.tokens_max else [*ids[: self.tokens_max - 1], ids[-1]]

    def _padded(self, ids: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """A text's tokens i32 (1, length), and 1 where there is one."""
        length = min(next(length for length in LENGTHS if len(ids) <= length), self._positions_max)
        row, mask = np.zeros((1, length), np.int32), np.zeros((1, length), np.int32)
        row[0, : len(ids)] = ids
        mask[0, : len(ids)] = 1
        return row, mask


async def serve_embedding(
    mesh: AsyncMesh, facts: ModelFacts, model: Model, folder: Path, options: Options, memory: ModelMemory,
    meters: Meters, keep_s: float | None = None,
) -> ServedEmbedding:  # fmt: skip
    """An encoder on a mesh, which is loaded when it is asked for and stays for `keep_s` after that (None: for ever).

    InputError for a damaged tokenizer, Unsupported for another pooling.
    """
    tokenizer, (mean, normalised), tokens_max = await asyncio.to_thread(
        lambda: (
            _of_file(model.encoder, facts.positions_max)
            if model.encoder is not None
            else _of_folder(folder, facts.positions_max)
        )
    )
    server, encoder = AsyncInferenceServer(mesh), _encoder(model, mean, normalised)
    weights_bytes = sum(weight.nbytes for weight in model.weights.values())

    async def plans() -> list[PlanPreview]:
        ids = np.zeros((1, LENGTHS[0]), np.int32)
        return [await mesh.plan(encoder, ids, ids, strategy=options.strategy, copies=options.copies)]

    async def load(residence: Residence) -> None:
        async with memory.room_for(residence, await shares_of(plans()), lambda: weights_bytes):
            await server.load_model(
                NAME, encoder, max_batch=int(options.max_batch), max_wait_ms=options.max_wait_ms,
                queue=TEXTS_MAX * int(options.max_batch), strategy=text_of(options.strategy), mode=options.mode,
                copies=options.copies,
            )  # fmt: skip

    admission = Admission(int(options.max_batch), int(options.queue))
    return ServedEmbedding(facts, server, tokenizer, tokens_max, admission, load, memory.release, meters, keep_s)


def embeds(model: Model) -> bool:
    """Whether a model is an encoder whose last layer it gives."""
    return model.text is None and HIDDEN in model.outputs


def _encoder(model: Model, mean: bool, normalised: bool) -> Any:
    def encode(ids: Array, mask: Array) -> Array:
        outputs = model({"input_ids": ids, "attention_mask": mask})
        hidden = outputs[HIDDEN] if isinstance(outputs, dict) else outputs
        weights = mnp.astype(mask, hidden.dtype)[:, :, None]
        averaged = mnp.sum(hidden * weights, axis=1) / mnp.maximum(mnp.sum(weights, axis=1), 1e-9)
        pooled = averaged if mean else hidden[:, 0]
        if not normalised:
            return pooled
        return pooled / mnp.maximum(mnp.sqrt(mnp.sum(pooled * pooled, axis=1, keepdims=True)), 1e-12)

    return encode


def _of_folder(folder: Path, positions_max: int | None) -> Embedding:
    return Tokenizer(folder), _pooling(folder), _tokens_max(folder, positions_max)


def _of_file(told: EncoderMetadata, positions_max: int | None) -> Embedding:
    """A file that tells no pooling has the mean, as a folder has; embeddings are normalised."""
    file = told.text.file
    if told.pooling not in ("", "mean", "first"):
        raise Unsupported(f"{file} pools by {told.pooling}", next_step="Known: mean of the tokens, first token")
    return (
        Tokenizer(file.parent, told.text),
        (told.pooling != "first", True),
        min(LENGTHS[-1], positions_max or LENGTHS[-1]),
    )


def _pooling(folder: Path) -> tuple[bool, bool]:
    """Whether the mean of the tokens is the embedding (else the first one), and whether it is normalised."""
    pooling = _object(folder / "1_Pooling" / "config.json")
    modes = [name for name, on in pooling.items() if name.startswith("pooling_mode_") and on]
    if len(modes) > 1 or (modes and modes[0] not in ("pooling_mode_mean_tokens", "pooling_mode_cls_token")):
        raise Unsupported(f"{folder} pools by {', '.join(modes)}", next_step="Known: mean of the tokens, first token")
    file = folder / "modules.json"
    modules = read_json(file) if file.exists() else []
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise InputError(f"{file} holds no list of modules")
    kinds = [str(each.get("type", "")).rpartition(".")[2] for each in modules]
    return modes != ["pooling_mode_cls_token"], not kinds or "Normalize" in kinds


def _tokens_max(folder: Path, positions_max: int | None) -> int:
    file = folder / "sentence_bert_config.json"
    most = _object(file).get("max_seq_length")
    if most is not None and (type(most) is not int or most < 1):
        raise InputError(f"{file}: max_seq_length is a positive integer, got {most!r:.60}")
    return min(most or LENGTHS[-1], positions_max or LENGTHS[-1])


def _object(file: Path) -> dict[str, Any]:
    return read_object(file) if file.exists() else {}
