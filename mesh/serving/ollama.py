"""Ollama's interface: POST /api/chat, /api/generate, /api/embed, /api/embeddings, /api/show; GET /api/tags, /api/ps,
/api/version.

Answers are lines of JSON.  Times are in nanoseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ..inference.logit_adjustment import PENALTY_MAX, REPEAT_MAX, REPEAT_MIN, LogitAdjustment
from ..inference.settings import Sampling
from .answer import Answer, TextPiece, TextRequest, ToolCalled, whole
from .api_error import ApiError, ollama_shape, wrong
from .calls import Call
from .conversation import Conversation, asked, joined_text, read_tools
from .fields import Fields
from .grammar import ANY_OBJECT, Grammar
from .openai_chat import SEED_MAX, TOKENS_LIMIT, TOP_K_MAX
from .openai_completions import read_prompts
from .replies import JSON_LINES, JsonReply, Reply, StreamReply, line_frame
from .residence import Keep
from .served_text import ModelFacts, ServedText

REPEAT_LAST = 64  # tokens for which penalties count, where the request does not say
NEVER = "2318-10-22T00:00:00Z"  # when a model goes that stays
KEEP_S_MAX = 1e9
DURATION_S: Mapping[str, float] = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "": 1.0,
}
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|(?=$))")
VERSION = "0.12.0"  # the version of Ollama whose interface this is
# What only says how Ollama computes; it changes nothing here.
COMPUTING = frozenset(
    {
        "num_ctx",
        "num_batch",
        "num_gpu",
        "main_gpu",
        "num_thread",
        "use_mmap",
        "use_mlock",
        "numa",
        "low_vram",
        "num_keep",
    }
)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "mirostat": (0,), "min_p": (0,), "typical_p": (1,), "tfs_z": (1,), "penalize_newline": (False,),
    "mirostat_tau": (5,), "mirostat_eta": (0.1,),
}  # fmt: skip


async def chat(call: Call) -> Reply:
    """Answer a conversation."""
    fields = Fields(call.body)
    model = call.models.text(fields.text("model"))
    given = fields.items("messages")
    messages = [_message(Fields(each, f"messages[{place}]")) for place, each in enumerate(given)]
    talk = Conversation(messages, read_tools(fields), format=_format(fields), template=_thinking(fields))
    how, stream, keep_s = _how(fields, call), fields.boolean("stream", True), _keep(fields)
    fields.done()
    if not messages:
        return await _loaded(model, keep_s, call, _chat_piece("", ()))
    began_ns = call.clock_ns()
    answer = await model.begin(await asked(model, talk, how), call.client, keep_s)
    return await _replied(_Head(model.facts.name, "message", began_ns, call), answer, stream, _chat_piece)


async def generate(call: Call) -> Reply:
    """Go on with a prompt: as the user's message where the model has a chat template, unless it is raw."""
    fields = Fields(call.body)
    model = call.models.text(fields.text("model"))
    prompt, system = fields.text("prompt", ""), fields.text("system", "")
    raw, form = fields.boolean("raw", False), _format(fields)
    template = _thinking(fields)
    how, stream, keep_s = _how(fields, call), fields.boolean("stream", True), _keep(fields)
    fields.done()
    if not prompt:
        return await _loaded(model, keep_s, call, _text_piece("", ()))
    if raw or model.template is None:
        if system:
            raise wrong("system needs a chat template", "system")
        request = replace(how, prompts=(prompt,), grammar=form, framed=True, param="prompt")
    else:
        messages = [{"role": "system", "content": system}] if system else []
        talk = Conversation([*messages, {"role": "user", "content": prompt}], format=form, template=template)
        request = await asked(model, talk, how)
    began_ns = call.clock_ns()
    answer = await model.begin(request, call.client, keep_s)
    return await _replied(_Head(model.facts.name, "response", began_ns, call), answer, stream, _text_piece)


async def embed(call: Call) -> Reply:
    """Embed texts."""
    fields = Fields(call.body)
    model = call.models.embedding(fields.text("model"))
    texts = read_prompts(fields.get("input"), "input")
    cut, keep_s = fields.boolean("truncate", True), _keep(fields)
    _options(fields)
    fields.done()
    began_ns = call.clock_ns()
    rows, tokens = await model.embed(texts, call.client, cut, keep_s)
    took = {"total_duration": call.clock_ns() - began_ns, "load_duration": 0, "prompt_eval_count": tokens}
    return JsonReply({"model": model.facts.name, "embeddings": rows.tolist(), **took})


async def embed_one(call: Call) -> Reply:
    """Embed one text, as clients ask that are older than /api/embed."""
    fields = Fields(call.body)
    model = call.models.embedding(fields.text("model"))
    texts, keep_s = read_prompts(fields.text("prompt"), "prompt"), _keep(fields)
    _options(fields)
    fields.done()
    rows, _ = await model.embed(texts, call.client, True, keep_s)
    return JsonReply({"embedding": rows[0].tolist()})


async def tags(call: Call) -> Reply:
    """List the models."""
    return JsonReply({"models": [_listed(facts) for facts in call.models.facts()]})


async def running(call: Call) -> Reply:
    """List the models that are on the workers."""
    there = [(facts, NEVER if left_s is None else _time(call.now_s() + left_s)) for facts, left_s in _resident(call)]
    return JsonReply({"models": [{**_listed(facts), "size_vram": 0, "expires_at": until} for facts, until in there]})


def _resident(call: Call) -> list[tuple[ModelFacts, float | None]]:
    return call.models.resident()


async def show(call: Call) -> Reply:
    """Tell of a model."""
    fields = Fields(call.body)
    name = fields.text("model", fields.text("name", ""))
    fields.get("verbose")
    fields.done()
    found = next((each for each in call.models.facts() if each.name == name.removesuffix(":latest")), None)
    if found is None:
        raise ApiError(404, f"model {name!r} not found", code="model_not_found", param="model")
    text = found.kind == "text"
    source = call.models.text(found.name).template if text else None
    info = {
        "general.architecture": found.family,
        "general.parameter_count": found.parameters,
        f"{found.family}.context_length": found.positions_max,
    }
    tools = ["tools"] if source is not None and "tools" in source.source(True) else []
    can = ["completion", *tools] if text else ["embedding"]
    return JsonReply(
        {
            "modelfile": "", "parameters": "", "template": source.source(False) if source else "",
            "details": _details(found), "model_info": info, "capabilities": can, "modified_at": _time(found.created_s),
        }
    )  # fmt: skip


async def version(call: Call) -> Reply:
    """Tell which version of the interface this is."""
    return JsonReply({"version": VERSION})


# -- reading


def _message(fields: Fields) -> dict[str, Any]:
    role = fields.choice("role", ("system", "user", "assistant", "tool"), "")
    if not role:
        raise fields.wrong("role", "system, user, assistant or tool", None)
    if fields.items("images"):
        name = fields.name("images")
        raise ApiError(400, f"{name}: this model reads text alone", code="unsupported_content", param=name)
    message: dict[str, Any] = {"role": role, "content": joined_text(fields.get("content"), fields.name("content"))}
    calls = []
    for place, each in enumerate(fields.items("tool_calls")):
        inner = Fields(Fields(each, fields.name(f"tool_calls[{place}]")).get("function"), fields.name("tool_calls"))
        function = {"name": inner.text("name"), "arguments": inner.object("arguments") or {}}
        calls.append({"type": "function", "function": function})
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    name = fields.get("tool_name") or fields.get("name")
    return {**message, "name": name} if isinstance(name, str) else message


def _how(fields: Fields, call: Call) -> TextRequest:
    options = _options(fields)
    top_p, seed = options.number("top_p", 0, 1, 0.9), options.integer("seed", -SEED_MAX, SEED_MAX)
    sampling = Sampling(
        options.number("temperature", 0, 2, 0.8), options.integer("top_k", 0, TOP_K_MAX, 40), max(top_p, 1e-6),
        call.new_seed() if seed is None else seed,
    )  # fmt: skip
    most = options.integer("num_predict", -2, TOKENS_LIMIT, -1)
    adjustment = _penalties(options)
    options.done()
    stops = options.texts("stop", 16)
    return TextRequest((), sampling, most if most > 0 else None, stops=stops, adjustment=adjustment)


def _penalties(options: Fields) -> LogitAdjustment | None:
    """The penalties, for which the last tokens count, those of the prompt too; None for nothing."""
    presence, frequency = (
        options.number(name, -PENALTY_MAX, PENALTY_MAX, 0) for name in ("presence_penalty", "frequency_penalty")
    )
    repeat = options.number("repeat_penalty", REPEAT_MIN, REPEAT_MAX, 1)
    last = options.integer("repeat_last_n", -1, TOKENS_LIMIT, REPEAT_LAST)
    adjustment = LogitAdjustment((), presence, frequency, repeat, TOKENS_LIMIT if last < 0 else last)
    return None if adjustment.neutral else adjustment


def _keep(fields: Fields) -> float | Keep | None:
    """How long the model stays after this request: seconds, or a text such as "10m"; None where that is below 0."""
    given = fields.get("keep_alive")
    if given is None:
        return Keep.AS_EVER
    if isinstance(given, int | float) and not isinstance(given, bool):
        return None if given < 0 else min(float(given), KEEP_S_MAX)
    parts = DURATION.findall(given) if isinstance(given, str) else []
    if not parts or "".join(map("".join, parts)) != given.removeprefix("-"):
        raise fields.wrong("keep_alive", 'seconds, or a text such as "10m" or "1h30m"', given)
    seconds = sum(float(number) * DURATION_S[unit] for number, unit in parts)
    return None if given.startswith("-") else min(seconds, KEEP_S_MAX)


def _options(fields: Fields) -> Fields:
    """The options, without those that change nothing; ApiError for one that would."""
    given = dict(fields.object("options") or {})
    for name in COMPUTING & given.keys():
        del given[name]
    for name, values in NEUTRAL.items():
        if name in given and given.pop(name) not in (None, *values):
            message = f"this server does not support options.{name}: leave it out"
            raise ApiError(400, message, code="unsupported_parameter", param=f"options.{name}")
    options = Fields(given, "options")
    options.get("stop")
    return options


def _format(fields: Fields) -> Grammar | None:
    given = fields.get("format")
    if given in (None, ""):
        return None
    if given == "json":
        return Grammar("format", dict(ANY_OBJECT))
    if not isinstance(given, dict):
        raise fields.wrong("format", '"json" or a JSON schema', given)
    return Grammar("format", given)


def _thinking(fields: Fields) -> Mapping[str, Any]:
    """Whether the model thinks first, for templates that can say so."""
    given = fields.get("think")
    return {} if given is None else {"enable_thinking": bool(given)}


# -- writing


@dataclass(frozen=True, slots=True)
class _Head:
    """What every line of an answer begins with."""

    model: str
    kind: str
    began_ns: int
    call: Call

    def line(self, piece: Mapping[str, Any], done: bool) -> dict[str, Any]:
        return {"model": self.model, "created_at": _time(self.call.now_s()), **piece, "done": done}

    def last(self, piece: Mapping[str, Any], reason: str, answer: Answer, first_ns: int) -> dict[str, Any]:
        now_ns = self.call.clock_ns()
        reading_ns = max(first_ns - self.began_ns, 1) if first_ns else now_ns - self.began_ns
        return {
            **self.line(piece, True),
            "done_reason": "length" if reason == "length" else "stop",
            "total_duration": now_ns - self.began_ns,
            "load_duration": 0,
            "prompt_eval_count": answer.usage.prompt_tokens,
            "prompt_eval_duration": reading_ns,
            "eval_count": answer.usage.completion_tokens,
            "eval_duration": max(now_ns - self.began_ns - reading_ns, 1),
        }


Piece = Callable[[str, tuple[ToolCalled, ...]], dict[str, Any]]


def _chat_piece(text: str, calls: tuple[ToolCalled, ...]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"function": {"name": each.call.name, "arguments": json.loads(each.call.arguments)}} for each in calls
        ]
    return {"message": message}


def _text_piece(text: str, calls: tuple[ToolCalled, ...]) -> dict[str, Any]:
    return {"response": text}


async def _replied(head: _Head, answer: Answer, stream: bool, piece: Piece) -> Reply:
    if stream:
        return StreamReply(
            JSON_LINES, _lines(head, answer, piece), lambda error: line_frame(ollama_shape(error)), answer.close
        )
    (said,) = await whole(answer)
    return JsonReply(head.last(piece(said.text, said.calls), said.reason, answer, 0))


async def _lines(head: _Head, answer: Answer, piece: Piece) -> AsyncIterator[bytes]:
    first_ns = 0
    async for event in answer.events():
        first_ns = first_ns or head.call.clock_ns()
        if isinstance(event, TextPiece):
            yield line_frame(head.line(piece(event.text, ()), False))
        elif isinstance(event, ToolCalled):
            yield line_frame(head.line(piece("", (event,)), False))
        else:
            yield line_frame(head.last(piece("", ()), event.reason, answer, first_ns))


async def _loaded(model: ServedText, keep_s: float | Keep | None, call: Call, piece: Mapping[str, Any]) -> Reply:
    """The answer to a request that says nothing, by which Ollama's programs have a model loaded, or unloaded."""
    head = _Head(model.facts.name, "", 0, call)
    if keep_s == 0 and not model.residence.there:
        return JsonReply({**head.line(piece, True), "done_reason": "unload"})
    stay = model.residence.enter(keep_s)
    try:
        await stay.ready()
    finally:
        stay.end()
    return JsonReply({**head.line(piece, True), "done_reason": "unload" if keep_s == 0 else "load"})


def _listed(facts: ModelFacts) -> dict[str, Any]:
    return {
        "name": facts.name, "model": facts.name, "modified_at": _time(facts.created_s), "size": facts.size_bytes,
        "digest": "", "details": _details(facts),
    }  # fmt: skip


def _details(facts: ModelFacts) -> dict[str, Any]:
    size = f"{facts.parameters / 1e9:.1f}B" if facts.parameters >= 1e8 else f"{facts.parameters / 1e6:.2f}M"
    return {
        "parent_model": "", "format": "safetensors", "family": facts.family, "families": [facts.family],
        "parameter_size": size, "quantization_level": "",
    }  # fmt: skip


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
