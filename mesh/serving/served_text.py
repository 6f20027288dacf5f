"""Served text: a language model with its tokenizer, chat template and queue, behind the one call that the APIs make.

`begin` takes a TextRequest and gives an Answer.  This is the border between the APIs and what generates: all that is
used beyond it is `Batches`, whose `begin` goes on with tokens.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from wire.errors import InputError

from ..client.async_mesh import AsyncMesh
from ..inference.continuous_batching import Guide
from ..inference.generation_runner import text_of
from ..inference.logit_adjustment import LogitAdjustment
from ..inference.replica_set import Kind, ReplicaSet
from ..inference.settings import Options, Sampling
from ..inference.tokenizer import Tokenizer, tokenizer_of
from ..models.model import Model
from .admission import Admission
from .answer import Answer, TextRequest, TokenSource, Usage
from .api_error import ApiError, wrong
from .chat_template import ChatTemplate, load_chat_template
from .grammar import Grammars
from .metrics import Meters, Reading, TextMeter
from .model_memory import ModelMemory, shares_of
from .residence import Keep, Residence

TOKENS_MAX = 4096  # of an answer, where the request does not say
CHOICES_MAX = 16  # texts of one request


class Batches(Protocol):
    """What generates: it goes on with tokens, a stream for each text.

    `positions_max` is how many tokens a text may have, `ends` the tokens that end one, `pages` those that are held and
    that can be had, `drafted` and `accepted` how many drafts were checked and became tokens.  `begin` raises a
    MeshError at once for a text that it cannot go on with; a stream raises one where it fails later.
    """

    vocabulary: int
    ends: tuple[int, ...]

    @property
    def positions_max(self) -> int | None: ...

    @property
    def pages(self) -> tuple[int, int]: ...

    @property
    def drafted(self) -> int: ...

    @property
    def accepted(self) -> int: ...

    def begin(
        self,
        tokens: Sequence[int],
        tokens_max: int,
        how: Sampling,
        ends: Sequence[int],
        guide: Guide | None,
        scored: bool,
        adjustment: LogitAdjustment | None,
    ) -> TokenSource: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What APIs tell of a model: its name, since when it is served, the bytes of its weights, its family and size."""

    name: str
    created_s: int
    size_bytes: int
    family: str
    parameters: int
    positions_max: int | None
    kind: str  # "text" or "embedding"


class ServedText:
    """A language model that is served."""

    def __init__(
        self, facts: ModelFacts, model: Model, batches: Batches, tokenizer: Tokenizer, template: ChatTemplate | None,
        admission: Admission, load: Callable[[Residence], Awaitable[Batches]],
        gone: Callable[[Residence], None], meters: Meters, keep_s: float | None = None,
    ) -> None:  # fmt: skip
        self.facts = facts
        self.residence = Residence(facts.name, self._load, self._unload, keep_s)
        self.successor: ServedText | None = None  # what takes requests in its place, once it is being replaced
        self._load_batches, self._gone, self._meters = load, gone, meters
        self.tokenizer = tokenizer
        self.template = template
        self.admission = admission
        self._batches = batches
        self._grammars: Grammars | None = None
        named = template.special_tokens.get("eos_token") if template else None
        own = tokenizer.id_of(named) if named else None
        self._ends = tuple(dict.fromkeys((*batches.ends, *(() if own is None else (own,)))))

    def prompt_of(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None,
        more: Mapping[str, Any] | None = None, continued: bool = False,
    ) -> str:  # fmt: skip
        """The text of a conversation, by the model's chat template; ApiError 400 where there is none, or it refuses."""
        if self.template is None:
            raise ApiError(
                400,
                f"the model {self.facts.name!r} has no chat template: use /v1/completions, or put a "
                "chat_template.jinja into its folder",
                code="no_chat_template",
                param="messages",
            )
        try:
            return self.template.render(messages, tools or None, more=more, continued=continued)
        except InputError as error:
            raise ApiError(400, str(error), code="chat_template_failed", param="messages") from None

    async def begin(self, request: TextRequest, client: str, keep_s: float | Keep | None = Keep.AS_EVER) -> Answer:
        """Begin to answer, once it is this client's turn and the model is on the workers, where it stays for `keep_s`
        (None: as long as the server).

        ApiError 429 at once if too many wait, 400 for what does not fit the model, 503 if it takes too long to load.
        """
        if self.successor is not None:
            return await self.successor.begin(request, client, keep_s)
        self.admission.check_room()  # before the work of a request that would be refused after it
        stay, now_s = self.residence.enter(keep_s), asyncio.get_running_loop().time
        meter = TextMeter(self._meters, self.facts.name, now_s())
        try:
            prompts, guides = await asyncio.to_thread(self._prepared, request)
            turn = await self.admission.turn(client)
        except BaseException:
            stay.end()
            raise

        usage = Usage(sum(len(prompt) for prompt in prompts))

        def over() -> None:
            turn.end()
            stay.end()
            meter.over(usage.prompt_tokens, usage.cached_tokens)

        streams: list[TokenSource] = []
        try:
            await stay.ready()
            for place, guide in enumerate(guides):
                tokens = prompts[place // request.choices]
                streams.append(self._begin(tokens, request, place, guide))
        except BaseException:
            for stream in streams:
                stream.cancel()
            over()
            raise
        return Answer(
            request, streams, self.tokenizer, frozenset(self._ends), usage, new_call_id, over,
            lambda choice: meter.came(choice, now_s()),
        )  # fmt: skip

    def readings(self) -> list[Reading]:
        """What the model does now, for metrics."""
        batches, name = self._batches, {"model": self.facts.name}
        used, free = batches.pages if self.residence.there else (0, 0)
        return [
            *self.admission.readings(self.facts.name),
            ("model_loaded", name, int(self.residence.there)),
            ("kv_pages_used", name, used),
            ("kv_pages_free", name, free),
            ("drafts_total", name, batches.drafted),
            ("drafts_accepted_total", name, batches.accepted),
        ]

    async def close(self) -> None:
        """End every text, and free what the workers hold."""
        await self.residence.close()

    async def _load(self) -> None:
        self._batches = await self._load_batches(self.residence)

    async def _unload(self) -> None:
        try:
            await self._batches.close()
        finally:  # counted still, it would be asked again and again to make way
            self._gone(self.residence)

    # -- helpers

    def _prepared(self, request: TextRequest) -> tuple[list[tuple[int, ...]], list[Guide | None]]:
        """The tokens of every prompt, and a guide for every text; this takes time, and is done in a thread."""
        prompts = [self._tokens(prompt, request) for prompt in request.prompts]
        texts = len(prompts) * request.choices
        if texts > CHOICES_MAX:
            raise wrong(f"a request has {CHOICES_MAX} texts at most, got {texts}", "n")
        for token, _ in request.adjustment.biases if request.adjustment is not None else ():
            if token >= self._batches.vocabulary:
                raise wrong(f"there is no token {token}: the vocabulary has {self._batches.vocabulary}", "logit_bias")
        if request.grammar is None:
            return prompts, [None] * texts
        if self._grammars is None:
            self._grammars = Grammars(self.tokenizer.json(), self._batches.vocabulary, self._ends)
        try:
            return prompts, [self._grammars.guide(request.grammar) for _ in range(texts)]
        except InputError as error:
            raise ApiError(400, str(error), code="invalid_schema", param=request.grammar.what) from None

    def _tokens(self, prompt: str | tuple[int, ...], request: TextRequest) -> tuple[int, ...]:
        tokens = tuple(self.tokenizer.ids(prompt, request.framed)) if isinstance(prompt, str) else prompt
        if not tokens:
            raise wrong("the prompt is empty: it needs one token at least", request.param)
        unknown = next((token for token in tokens if not 0 <= token < self._batches.vocabulary), None)
        if unknown is not None:
            raise wrong(f"there is no token {unknown}: the vocabulary has {self._batches.vocabulary}", request.param)
        most = self._batches.positions_max
        if most is not None and len(tokens) > most:
            context = self.facts.positions_max
            what = "the model's context is" if most == context else "the memory for keys and values (--kv-budget) holds"
            raise ApiError(
                400,
                f"{what} {most} tokens, and the request has {len(tokens)}: shorten it",
                code="context_length_exceeded",
                param=request.param,
            )
        return tokens

    def _begin(self, tokens: tuple[int, ...], request: TextRequest, place: int, guide: Guide | None) -> TokenSource:
        most = self._batches.positions_max
        tokens_max = request.tokens_max or TOKENS_MAX
        if most is not None:
            tokens_max = min(tokens_max, most - len(tokens) + 1)
        how = request.sampling.shifted(place)
        scored = request.likeliest is not None
        return self._batches.begin(tokens, tokens_max, how, self._ends, guide, scored, request.adjustment)


def new_call_id() -> str:
    """A name for a tool call: nine letters and digits, which is all that some templates take."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    return "".join(secrets.choice(alphabet) for _ in range(9))


async def serve_text(
    mesh: AsyncMesh, facts: ModelFacts, model: Model, options: Options, memory: ModelMemory, meters: Meters,
    keep_s: float | None = None,
) -> ServedText:  # fmt: skip
    """A language model on a mesh, which is loaded when it is asked for and stays for `keep_s` after that (None: as long
    as the server); InputError for a folder whose tokenizer or template is damaged."""
    text = text_of(model)
    tokenizer = await asyncio.to_thread(tokenizer_of, text)
    template = await asyncio.to_thread(load_chat_template, text.folder, text.metadata)
    queue = CHOICES_MAX * int(options.max_batch) * int(options.replicas)
    batches = await ReplicaSet.open(mesh, model, options, queue, tuple(Kind))  # for what it says of the model
    await batches.close()

    async def load(residence: Residence) -> ReplicaSet:
        opened = await ReplicaSet.open(mesh, model, options, queue, tuple(Kind))
        try:
            shares = await shares_of(opened.plans())
            async with memory.room_for(residence, shares, lambda: opened.held_bytes):
                await opened.load()
        except BaseException:
            await opened.close()
            raise
        return opened

    admission = Admission(int(options.max_batch) * options.replicas, int(options.queue))
    return ServedText(facts, model, batches, tokenizer, template, admission, load, memory.release, meters, keep_s)


__all__ = ["Batches", "ModelFacts", "ServedText", "serve_text"]
