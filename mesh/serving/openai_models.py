"""OpenAI's lists of models and embeddings: GET /v1/models, POST /v1/embeddings.

Anthropic's clients ask for the same list, and find the names of theirs in it, too.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

from .api_error import ApiError
from .calls import Call
from .fields import Fields
from .openai_completions import read_prompts
from .replies import JsonReply, Reply
from .served_text import ModelFacts


async def list_models(call: Call) -> Reply:
    """List every model that is served."""
    data = [_shown(facts) for facts in call.models.facts()]
    names = [model["id"] for model in data] or [None]
    return JsonReply({"object": "list", "data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]})


async def one_model(call: Call) -> Reply:
    """Tell of a single model."""
    name = call.path["model"]
    found = next((facts for facts in call.models.facts() if facts.name == name), None)
    if found is None:
        raise no_model(name, call.models.facts())
    return JsonReply(_shown(found))


async def embeddings(call: Call) -> Reply:
    """Embed texts."""
    fields = Fields(call.body)
    model = call.models.embedding(fields.text("model"))
    texts = read_prompts(fields.get("input"), "input")
    form = fields.choice("encoding_format", ("float", "base64"), "float")
    fields.done()
    rows, tokens = await model.embed(texts, call.client)
    data = [
        {"object": "embedding", "index": place, "embedding": row.tolist() if form == "float" else _base64(row)}
        for place, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JsonReply({"object": "list", "data": data, "model": model.facts.name, "usage": usage})


_OTHERWISE = {"text": "gives embeddings and generates no text", "embedding": "generates text and gives no embeddings"}


def no_model(name: str, known: list[ModelFacts], kind: str = "") -> ApiError:
    """The error for a model that is not served, or is of another kind than this `kind`."""
    names = ", ".join(facts.name for facts in known if kind in ("", facts.kind)) or "none"
    what = f"there is no model {name!r} here; served"
    if kind and name.removesuffix(":latest") in {facts.name for facts in known}:
        what = f"{name!r} {_OTHERWISE[kind]}; models that do"
    return ApiError(404, f"{what}: {names}", code="model_not_found", param="model")


def _shown(facts: ModelFacts) -> dict[str, Any]:
    since = datetime.fromtimestamp(facts.created_s, UTC).isoformat()
    own = {"id": facts.name, "object": "model", "created": facts.created_s, "owned_by": "graph-mesh"}
    return {**own, "type": "model", "display_name": facts.name, "created_at": since}


def _base64(row: Any) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode("ascii")
