"""`model.generate`: one call that goes on with prompts, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from typing import TYPE_CHECKING, Any

from wire.errors import InputError

from ..backends.config import MeshConfig
from ..client.async_mesh import AsyncMesh
from ..client.mesh import Mesh
from ..models.model import Model, Prompt
from .generation_runner import Generating, budget_of, text_of
from .replies import Reply, Request, is_one
from .settings import choice
from .tokenizer import Tokenizer, tokenizer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS_MAX = 16


def generate(
    model: Model, prompts: Prompt | Sequence[Prompt], request: Request, stream: bool, mesh: Mesh | None, strategy: str
) -> Any:
    """See `mesh.Model.generate`."""
    choice(stream, "stream")
    if mesh is not None and not isinstance(mesh, Mesh):
        raise InputError(f"mesh is a mesh.Mesh, got {mesh!r:.60}", next_step="Leave it out to compute in this process")
    one = is_one(prompts)
    several: list[Any] = [prompts] if one else list(prompts)
    text = text_of(model)
    tokenizer = tokenizer_of(text) if any(isinstance(prompt, str) for prompt in several) else None
    call = _Call(model, several, request, tokenizer, mesh, strategy)
    if stream:
        pieces = call.pieces()
        return (piece for _, piece in pieces) if one else pieces
    replies = call.all()
    return replies[0] if one else replies


class _Call:
    """One call, on a mesh that is there or in this process."""

    def __init__(
        self, model: Model, prompts: list[Prompt], request: Request, tokenizer: Tokenizer | None, mesh: Mesh | None,
        strategy: str,
    ) -> None:  # fmt: skip
        self._model = model
        self._prompts = prompts
        self._request = request
        self._tokenizer = tokenizer
        self._mesh = mesh
        self._strategy = strategy

    def all(self) -> list[Any]:
        with self._where() as where:
            return where.wait(self._all(where.on_loop))

    def pieces(self) -> Iterator[tuple[int, Any]]:
        """Pieces with the prompts' places, one prompt after the other; all go on meanwhile."""
        with self._where() as where:
            generating, replies = where.wait(self._begin(where.on_loop))
            try:
                for place, reply in enumerate(replies):
                    while (piece := where.wait(_next(reply))) is not None:
                        yield place, piece
            finally:
                where.wait(generating.close())

    def _where(self) -> AbstractContextManager[Mesh]:
        """The mesh that was given, or one of its own meanwhile."""
        return closing(Mesh(MeshConfig())) if self._mesh is None else nullcontext(self._mesh)

    async def _begin(self, mesh: AsyncMesh) -> tuple[Generating, list[Reply]]:
        count = len(self._prompts)
        generating = Generating(
            mesh, self._model, slots=min(count, SLOTS_MAX), queue=count, strategy=self._strategy,
            kv_bytes=await budget_of(mesh, None),
        )  # fmt: skip
        try:
            return generating, [
                self._request.begin(generating, self._tokenizer, prompt, place)
                for place, prompt in enumerate(self._prompts)
            ]
        except BaseException:
            await generating.close()
            raise

    async def _all(self, mesh: AsyncMesh) -> list[Any]:
        generating, replies = await self._begin(mesh)
        try:
            return [await reply.all() for reply in replies]
        finally:
            await generating.close()


async def _next(reply: Reply) -> Any:
    return await anext(reply, None)
