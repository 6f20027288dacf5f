"""ModelServer: models of a mesh behind HTTP.

    with mesh.Mesh.builder().discover().build() as m, mesh.ModelServer(m, port=7200) as server:
        server.load_model("llama", "path/to/folder")
        print(server.url)

`AsyncModelServer` is the same on a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

from wire.addresses import EVERY, shown
from wire.errors import ConfigError, InputError
from wire.policy.strategies import Strategy
from wire.system.steady_log import steady_logger
from wire.system.tasks import to_the_end

from ..client.async_mesh import AsyncMesh
from ..client.mesh import Mesh
from ..inference.settings import Options, number
from ..models.load import load
from ..models.model import Model
from ..util.annotation_checks import checked
from ..util.json_file import read_object
from .api_error import ApiError
from .api_keys import ApiKeys
from .http_server import HttpServer, Listening
from .metrics import Meters
from .model_memory import ModelMemory
from .openai_models import no_model
from .residence import Keep
from .served_embedding import ServedEmbedding, embeds, serve_embedding
from .served_text import ModelFacts, ServedText, serve_text

log = steady_logger("graph_mesh.serving")

PORT = 7200
LOADING_S = 5  # what a client is asked to wait for a model that is being loaded
NAME_CHARACTERS_MAX = 200


class Served:
    """The models of a server, by name; Ollama's clients put ":latest" behind one."""

    def __init__(self) -> None:
        self.by_name: dict[str, ServedText | ServedEmbedding] = {}
        self.loading: set[str] = set()
        self.meters = Meters()

    def text(self, name: str) -> ServedText:
        """A model that goes on with texts; ApiError 404 for another name."""
        found = self._found(name)
        if not isinstance(found, ServedText):
            raise no_model(name, self.facts(), "text")
        return found

    def embedding(self, name: str) -> ServedEmbedding:
        """A model that embeds texts; ApiError 404 for another name."""
        found = self._found(name)
        if not isinstance(found, ServedEmbedding):
            raise no_model(name, self.facts(), "embedding")
        return found

    def facts(self) -> list[ModelFacts]:
        """What is reported of each model, on the workers or not, in the order in which they were loaded."""
        return [model.facts for model in self.by_name.values()]

    def metrics(self) -> str:
        """What the server did and does, as Prometheus reads it."""
        return self.meters.text(reading for model in self.by_name.values() for reading in model.readings())

    def resident(self) -> list[tuple[ModelFacts, float | None]]:
        """The models that are on the workers, with the seconds for which they stay if nobody asks; None: for ever."""
        there = [model for model in self.by_name.values() if model.residence.there]
        return [(model.facts, model.residence.left_s) for model in there]

    def _found(self, name: str) -> ServedText | ServedEmbedding | None:
        found = self.by_name.get(name) or self.by_name.get(name.removesuffix(":latest"))
        if found is None and name.removesuffix(":latest") in self.loading:
            message = f"the model {name!r} is being loaded: try again in a while"
            raise ApiError(503, message, code="model_loading", param="model", retry_after_s=LOADING_S)
        return found


class AsyncModelServer:
    """Models of an AsyncMesh behind HTTP.

    Close it, or use it as an async context manager.

    Parameters
    ----------
    mesh : AsyncMesh
        The mesh; it stays open when the server is closed.
    listening : Listening, optional
        Where it listens, and whom it answers: by default programs of this machine.
    """

    def __init__(self, mesh: AsyncMesh, listening: Listening = Listening()) -> None:
        self._mesh = mesh
        self._listening = listening
        self._served = Served()
        self._http = HttpServer(self._served, listening)
        self._loaded_from: dict[str, _Source] = {}
        self._memory = ModelMemory()
        self._retiring: set[asyncio.Task[None]] = set()
        self._port = 0
        self._closed = False

    async def start(self) -> int:
        """Listen; the port."""
        self._port = await self._http.start()
        return self._port

    @property
    def url(self) -> str:
        """The address of this server, such as http://127.0.0.1:7200; of one on every address, that of loopback."""
        scheme = "http" if self._listening.tls is None else "https"
        host = EVERY.get(self._listening.host, self._listening.host)
        return f"{scheme}://{shown(host)}:{self._port}"

    async def load_model(
        self, name: str, model: str | Path | Model, options: Options = Options(), unload_after_s: float | None = None
    ) -> ModelFacts:
        """Serve a model under a name.  It is on the workers from its first request on, and until nobody has asked for
        `unload_after_s` (None: as long as the server).  InputError for a name that is taken, or a model that neither
        goes on with texts nor embeds them; ConfigError if the server is closed, before or meanwhile."""
        self._check_open()
        if not isinstance(name, str) or not name or len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
            raise InputError(f"a model's name has 1 to {NAME_CHARACTERS_MAX} characters that print, got {name!r:.80}")
        if name in self._served.by_name or name in self._served.loading:
            raise InputError(f"a model is called {name!r} already", next_step="Unload it first, or choose another name")
        self._served.loading.add(name)
        try:
            source = _Source(model, options, unload_after_s)
            served = await self._serve(name, source)
            if self._closed:
                await served.close()
                self._check_open()
            self._served.by_name[name], self._loaded_from[name] = served, source
        finally:
            self._served.loading.discard(name)
        return served.facts

    async def reload_model(
        self, name: str, model: str | Path | Model | None = None, options: Options | None = None
    ) -> ModelFacts:
        """Load a model anew, on the workers that there are now, while requests go on: what has begun ends where it is,
        and what comes then goes to the new one.  No request fails.

        `model` and `options` are those of before by default.  InputError for a name that is not served; where the new
        one cannot be loaded, the error of that, and the old one stays.
        """
        old = self._known(name)
        before = self._loaded_from[name]
        source = replace(before, model=before.model if model is None else model, options=options or before.options)
        new = await self._serve(name, source)
        try:
            if old.residence.there:
                kept = None if old.residence.pinned else Keep.AS_EVER
                stays = old.residence.enter(kept), new.residence.enter()  # the one stays, the other comes unasked
                try:
                    await stays[1].ready()
                finally:
                    for stay in stays:
                        stay.end()
            if self._served.by_name.get(name) is not old:
                raise InputError(f"the model {name!r} was unloaded, or loaded anew, meanwhile")
            if type(old) is not type(new):
                raise InputError(f"{name!r} goes on with texts or embeds them, and the new model does the other")
        except BaseException:
            await new.close()
            raise
        old.successor = new
        self._served.by_name[name], self._loaded_from[name] = new, source
        log.info("%s is loaded anew", name)
        retiring = asyncio.get_running_loop().create_task(_retired(old))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)
        return new.facts

    async def _reload(self, name: str, model: str | Path | Model | None, strategy: str | Strategy | None) -> None:
        self._known(name)
        options = self._loaded_from[name].options
        await self.reload_model(name, model, options if strategy is None else replace(options, strategy=strategy))

    async def unload_model(self, name: str) -> None:
        """Cancel the requests of a model, and free its memory on the workers."""
        served = self._known(name)
        del self._served.by_name[name], self._loaded_from[name]
        await served.close()

    async def close(self) -> None:
        """Cancel all requests, and unload all models, whoever is cancelled meanwhile."""
        await to_the_end(self._end())

    async def _end(self) -> None:
        self._closed = True
        await self._http.close()
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        self._loaded_from.clear()
        async with contextlib.AsyncExitStack() as closing:  # all of them, whatever one raises
            while self._served.by_name:
                closing.push_async_callback(self._served.by_name.popitem()[1].close)

    async def __aenter__(self) -> AsyncModelServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("this server is closed", next_step="Make another ModelServer")

    def _known(self, name: str) -> ServedText | ServedEmbedding:
        served = self._served.by_name.get(name)
        if served is None:
            known = ", ".join(self._served.by_name) or "none"
            raise InputError(f"no model is called {name!r}", next_step=f"Loaded: {known}")
        return served

    async def _serve(self, name: str, source: _Source) -> ServedText | ServedEmbedding:
        model = await asyncio.to_thread(_loaded, source.model)
        options, keep_s = source.options, source.unload_after_s
        if model.text is not None:
            facts = await asyncio.to_thread(_facts, name, model, model.text.folder, "text")
            return await serve_text(self._mesh, facts, model, options, self._memory, self._served.meters, keep_s)
        if options.draft is not None:
            raise InputError(f"{model.name or name} has no drafter: it does not generate text")
        if embeds(model) and not isinstance(source.model, Model):
            folder = Path(source.model)
            facts = await asyncio.to_thread(_facts, name, model, folder, "embedding")
            return await serve_embedding(
                self._mesh, facts, model, folder, options, self._memory, self._served.meters, keep_s
            )
        raise InputError(
            f"{model.name or name} is neither a language model nor an encoder from a folder",
            next_step="InferenceServer serves any model to Python programs",
        )


@dataclass(frozen=True, slots=True)
class _Source:
    """What a model was loaded from, and how."""

    model: str | Path | Model
    options: Options
    unload_after_s: float | None


async def _retired(served: ServedText | ServedEmbedding) -> None:
    """Let the requests of a model end, and free what it has on the workers."""
    try:
        await served.residence.drained()
    finally:
        await served.close()


class ModelServer:
    """Models of a mesh behind the HTTP interfaces of OpenAI, Anthropic and Ollama.

    Close it, or use it as a context manager.

    Parameters
    ----------
    mesh : Mesh
        The mesh; it stays open when the server is closed.
    host : str, optional
        The address to listen on.
    port : int, optional
        The port; 0 takes a free one.
    keys : str or Path, optional
        The file of API keys (`mesh-coord keys`), one of which each request needs. Without it, programs of this machine
        need no key.

    Raises
    ------
    InputError
        If an argument is of the wrong type.
    ConfigError
        If it cannot listen on this address, or would serve other machines without keys.

    Notes
    -----
    The routes and their parameters: docs/serving.md.

    Examples
    --------
    >>> import json
    >>> import urllib.request
    >>> import mesh
    >>> with mesh.Mesh.builder().build() as m, mesh.ModelServer(m, port=0) as server:
    ...     try:
    ...         server.load_model("llama", "no/such/folder")
    ...     except mesh.MeshError as error:
    ...         print(error)
    ...     with urllib.request.urlopen(server.url + "/v1/models") as answer:
    ...         print(json.load(answer)["data"])
    ...     try:
    ...         server.unload_model("llama")
    ...     except mesh.MeshError as error:
    ...         print(error)
    no/such/folder does not exist
    []
    no model is called 'llama'. Loaded: none
    """

    @checked
    def __init__(self, mesh: Mesh, host: str = "127.0.0.1", port: int = PORT, keys: str | Path | None = None) -> None:
        listening = Listening(host, port, keys=None if keys is None else ApiKeys(Path(keys)))
        self._mesh = mesh
        self._async = mesh.wait(_made(mesh.on_loop, listening))
        mesh.wait(self._async.start())

    def __repr__(self) -> str:
        return f"<ModelServer: {self.url}>"

    @property
    def url(self) -> str:
        """The address of this server, such as http://127.0.0.1:7200; of one on every address, that of loopback."""
        return self._async.url

    @checked
    def load_model(
        self,
        name: str,
        model: str | Path | Model,
        *,
        max_batch: int = 8,
        queue: int = 64,
        replicas: int = 1,
        chunk: int = 16,
        strategy: str | Strategy = "auto",
        kv_budget: int | str | None = None,
        draft: str | Path | Model | None = None,
        draft_tokens: int = 4,
        draft_on: str | None = None,
        unload_after_s: float | None = None,
    ) -> None:
        """Serve a model under a name.

        Parameters
        ----------
        name : str
            The name by which callers ask for it.
        model : str, Path or Model
            A folder as for `mesh.load`, or a model: a causal language model, or an encoder whose last layer is averaged
            to embeddings.
        max_batch : int, optional
            Requests that are generated together.
        queue : int, optional
            Requests that may wait; others are refused with status 429.
        replicas : int, optional
            How often a language model is there, each time on workers of its own where there are enough.
        chunk : int, optional
            Tokens of a prompt that one step reads.
        strategy : str or Strategy, optional
            How a step is placed, as for `Mesh.run`.
        kv_budget : int or str, optional
            The most memory for keys and values of a replica's texts, in bytes or as "4GiB"; by default a
            quarter of what the worker with the most memory may use.
        draft : str, Path or Model, optional
            A much smaller model with the same tokens, the drafter: it says which tokens may come next, and a step
            checks them.  The tokens stay the same.
        draft_tokens : int, optional
            The most drafts of a text that a step checks.
        draft_on : str, optional
            The worker that computes the drafter; by default the one that is predicted to be fastest.
        unload_after_s : float, optional
            Seconds after which a model that nobody asks for is unloaded from the workers; the next request has it
            loaded again.  None: it stays.

        Raises
        ------
        InputError
            If the name is taken, an option is wrong, or the model is of neither kind.
        ConfigError
            If the server is closed.

        Notes
        -----
        Weights go to the workers when they are first needed.
        """
        if unload_after_s is not None:
            number(unload_after_s, "unload_after_s")
        options = Options(
            max_batch=max_batch, queue=queue, replicas=replicas, chunk=chunk, strategy=strategy, kv_budget=kv_budget,
            draft=draft, draft_tokens=draft_tokens, draft_on=draft_on,
        )  # fmt: skip
        self._mesh.wait(self._async.load_model(name, model, options, unload_after_s))

    @checked
    def reload_model(
        self, name: str, model: str | Path | Model | None = None, *, strategy: str | Strategy | None = None
    ) -> None:
        """Load a model anew while requests go on, on the workers that there are now.

        What has begun ends where it is, and what comes then goes to the new one.  No request fails.

        Parameters
        ----------
        name : str
            Its name on this server.
        model : str, Path or Model, optional
            What to load; by default what was loaded before, which may have changed on disk.
        strategy : str or Strategy, optional
            How a step is placed from then on, such as `mesh.Auto(workers=("anna",))`; as before by default.

        Raises
        ------
        InputError
            If no model has this name, or the new one is of the other kind.
        PlacementError
            If the workers have no memory for both; the old one stays.

        Examples
        --------
        >>> import mesh
        >>> with mesh.Mesh.builder().build() as m, mesh.ModelServer(m, port=0) as server:
        ...     try:
        ...         server.reload_model("llama")
        ...     except mesh.MeshError as error:
        ...         print(error)
        no model is called 'llama'. Loaded: none
        """
        self._mesh.wait(self._async._reload(name, model, strategy))

    def unload_model(self, name: str) -> None:
        """Cancel the requests of a model, and free its memory on the workers.

        Parameters
        ----------
        name : str
            Its name on this server.

        Raises
        ------
        InputError
            If no model has this name.
        """
        self._mesh.wait(self._async.unload_model(name))

    def close(self) -> None:
        """Cancel all requests, and unload all models."""
        self._mesh.wait(self._async.close())

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _made(mesh: AsyncMesh, listening: Listening) -> AsyncModelServer:
    return AsyncModelServer(mesh, listening)


def _loaded(source: str | Path | Model) -> Model:
    model = load(source) if isinstance(source, str | Path) else source
    if not isinstance(model, Model):
        raise InputError(f"{source!r:.60} is no model", next_step="Give a folder or a mesh.Model")
    _ = model.handles  # hashed now, and not while somebody waits
    return model


def _facts(name: str, model: Model, folder: Path, kind: str) -> ModelFacts:
    file = folder / "config.json"
    metadata = model.text.metadata if model.text else model.encoder.text if model.encoder else None
    settings = read_object(file) if metadata is None and file.exists() else {}
    family = settings.get("model_type", "unknown") if metadata is None else metadata.architecture
    weights = model.weights.values()
    return ModelFacts(
        name, int(time.time()), sum(weight.nbytes for weight in weights), str(family),
        sum(weight.size for weight in weights), model.positions_max, kind,
    )  # fmt: skip


__all__ = ["PORT", "AsyncModelServer", "Listening", "ModelServer"]
