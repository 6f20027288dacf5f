"""InferenceServer: several models that answer requests, and go on with texts, on one mesh.

    server = InferenceServer(mesh)
    server.load_model("minilm", "path/to/folder", max_batch=16)
    rows = server.infer("minilm", {"input_ids": ids})
    for piece in server.generate("llama", "Once upon", stream=True): ...

`AsyncInferenceServer` is the same on a loop.  Any number of threads or tasks may ask at once: that is what batches are
made of.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wire.errors import ConfigError, InputError
from wire.ir.graph import WireGraph
from wire.system.tasks import to_the_end

from ..client.async_mesh import AsyncMesh
from ..client.mesh import Mesh
from ..core.call_arguments import merge_arguments
from ..models.load import load
from ..models.model import Model, Prompt, Stop
from ..transforms.graph_function import graph_function
from ..util.did_you_mean import names_checked, optioned
from .generation_runner import text_of
from .replica_set import ReplicaSet
from .replies import Reply, Request
from .request_runner import RequestRunner, is_batched
from .settings import Options, by_rows, choice
from .tokenizer import Tokenizer, tokenizer_of

Source = str | Path | Model | WireGraph | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model of a server, and what it does now.

    Parameters
    ----------
    name : str
        Its name on the server.
    weights_bytes : int
        Bytes of its weights.
    waiting : int
        Requests and texts that wait.
    texts : int
        Texts that go on.
    batches : int
        Batches of requests until now.
    steps : int
        Steps of texts until now.
    drafted : int, optional
        Drafts of texts that were checked until now.
    accepted : int, optional
        Drafts that became tokens of texts.

    Examples
    --------
    >>> from mesh.inference import LoadedModel
    >>> LoadedModel("gpt2", 500_000_000, waiting=0, texts=2, batches=0, steps=40).texts
    2
    """

    name: str
    weights_bytes: int
    waiting: int
    texts: int
    batches: int
    steps: int
    drafted: int = 0
    accepted: int = 0


class AsyncInferenceServer:
    """Several models that answer requests, and go on with texts, on the loop of an AsyncMesh.

    Close it, or use it as an async context manager.

    Parameters
    ----------
    mesh : AsyncMesh
        The mesh; it stays open when the server is closed.

    Raises
    ------
    InputError
        If it is no `mesh.AsyncMesh`.

    Notes
    -----
    Requests that come at the same time are computed together.

    Examples
    --------
    >>> import asyncio
    >>> import numpy as np
    >>> import mesh
    >>> async def main():
    ...     async with await mesh.Mesh.builder().build_async() as m:
    ...         async with mesh.AsyncInferenceServer(m) as server:
    ...             await server.load_model("double", lambda x: x * 2)
    ...             rows = await asyncio.gather(*(server.infer("double", np.full((1, 2), x)) for x in (1.0, 2.0)))
    ...             print(np.concatenate(rows), [model.name for model in server.loaded_models()])
    ...             await server.unload_model("double")
    >>> asyncio.run(main())
    [[2. 2.]
     [4. 4.]] ['double']
    """

    @names_checked
    def __init__(self, mesh: AsyncMesh) -> None:
        if not isinstance(mesh, AsyncMesh):
            use = "InferenceServer is for a mesh.Mesh" if isinstance(mesh, Mesh) else "Use AsyncMesh.connect()"
            raise InputError(f"AsyncInferenceServer serves on a mesh.AsyncMesh, got {mesh!r:.60}", next_step=use)
        self._mesh = mesh
        self._models: dict[str, _ServedModel] = {}
        self._loading: set[str] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<{self._text('AsyncInferenceServer')}>"

    def _text(self, what: str) -> str:
        """This server in a few words, as a `what`."""
        models = ", ".join(sorted(self._models)) or "no model"
        return f"{what}: {'closed' if self._closed else models}, on {self._mesh.describe('Mesh')}"

    @optioned
    async def load_model(
        self,
        name: str,
        model: Source,
        mesh: AsyncMesh | None = None,
        *,
        max_batch: int = 8,
        max_wait_ms: float = 2.0,
        queue: int = 64,
        replicas: int = 1,
        chunk: int = 16,
        batched: bool | None = None,
        strategy: str = "auto",
        mode: str = "auto",
        copies: str | None = None,
        kv_budget: int | str | None = None,
        draft: str | Path | Model | None = None,
        draft_tokens: int = 4,
        draft_on: str | None = None,
    ) -> None:
        """Serve a model under a name.

        Parameters
        ----------
        name : str
            The model's name on this server.
        model : str, Path, Model, WireGraph or callable
            A path as for `mesh.load`, a model, a function of arrays, or a graph, which takes any number of rows: it is
            computed in blocks of as many as it was traced for.
        mesh : AsyncMesh, optional
            This server's own mesh, which need not be given.
        max_batch : int, optional
            Rows that are computed together at most, and texts that go on together.
        max_wait_ms : float, optional
            Milliseconds after which a batch that is not full is computed.
        queue : int, optional
            Requests that may wait beside what is computed, and as many texts.
        replicas : int, optional
            How often a language model is there, each time on workers of its own where there are enough.
        chunk : int, optional
            Tokens of a prompt that a step reads.
        batched : bool, optional
            Whether the first axis of inputs and outputs is one of rows that do not depend on each other; by default as
            the model's file says, and False on a reproducible mesh.
        strategy : str, optional
            How a call is placed, as for `Mesh.run`.
        mode : str, optional
            Where a call is computed, as for `Mesh.run`.
        copies : str, optional
            The copies of the weights that workers keep, as for `Mesh.run`.
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

        Raises
        ------
        InputError
            If the name is taken, an option is wrong or not known, or it is no model.
        ConfigError
            If the server is closed.

        Notes
        -----
        Weights go to the workers when they are first needed.
        """
        _check_mesh(mesh, self._mesh)
        options = Options(
            max_batch, max_wait_ms, queue, replicas, chunk, batched, strategy, mode, copies, kv_budget, draft,
            draft_tokens, draft_on,
        )  # fmt: skip
        await self._serve(name, model, options)

    async def _serve(self, name: str, model: Source, options: Options) -> None:
        """Serve a model, with the options as one value."""
        self._check_open()
        if not isinstance(name, str) or not name or not name.isprintable():
            raise InputError(f"a model's name has one or more characters that print, got {name!r:.80}")
        if name in self._models or name in self._loading:
            raise InputError(f"a model is called {name!r} already", next_step="Unload it first, or choose another name")
        self._loading.add(name)
        try:
            loaded = await asyncio.to_thread(_loaded, model, options.batched is not False)
            self._check_open()
            served = _ServedModel(self._mesh, loaded, options)
            if isinstance(loaded, Model) and (loaded.text is not None or options.draft is not None):
                queue = -(-int(options.queue) // int(options.replicas))
                served.replicas = await ReplicaSet.open(self._mesh, loaded, options, queue)
            elif options.draft is not None:
                raise InputError("a function has no drafter: it does not generate text", next_step="Leave out draft")
            if self._closed:  # meanwhile
                await served.close()
            self._check_open()
            self._models[name] = served
        finally:
            self._loading.discard(name)

    @names_checked
    async def infer(self, name: str, /, *inputs: Any, **named: Any) -> Any:
        """Compute a model's outputs; cancel the task to want them no more.

        Parameters
        ----------
        name : str
            The model's name on this server.
        *inputs : array_like
            The inputs by place, or one mapping of them by name.
        **named : array_like
            The inputs by name.

        Returns
        -------
        Any
            The outputs, as `Mesh.run` gives them.

        Raises
        ------
        InputError
            If no model has this name, or the inputs do not fit.
        QueueFull
            At once, if too many wait already.
        """
        served = self._served(name)
        return await served.request_runner.ask(merge_arguments(served.model, inputs, named))

    @optioned
    def generate(
        self,
        name: str,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Stop = None,
        ends: int | Iterable[int] | None = None,
    ) -> Reply:
        """Begin to go on with a prompt.

        Parameters
        ----------
        name : str
            The model's name on this server.
        prompt : str or sequence of int
            A text, or tokens.
        max_new_tokens : int, optional
            How many tokens follow at most: by default 128, or as many as the model has positions for.
        temperature : float, optional
            0 takes the likeliest token; else logits are divided by it, and a token is drawn.
        top_k : int, optional
            How many of the likeliest tokens are drawn from; 0 for all.
        top_p : float, optional
            The probability that the tokens which are drawn from have together; 1 for all.
        seed : int, optional
            The seed of the draws.
        stop : str, int or sequence of these, optional
            Texts before which the answer ends, and tokens at which it ends.
        ends : int or iterable of int, optional
            The tokens that end an answer; by default the model's own.

        Returns
        -------
        Reply
            An async iterator of pieces, each when it is there.

        Raises
        ------
        InputError
            If no model has this name, or the inputs do not fit.
        QueueFull
            At once, if too many wait already.

        Examples
        --------
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import mesh
        >>> from mesh.models.decoder import Decoder, Text
        >>> following = {"rows": np.roll(np.eye(5, dtype=np.float32), 1, axis=1)}  # token 1 follows 0, and so on
        >>> embed, head = lambda params, ids, at: params["rows"][ids], lambda params, x: x
        >>> decoder = Decoder(embed, print, head, (), 1, 1, None, "rows")
        >>> model = mesh.Model("count", print, [], [], following, Text(decoder, Path(), ends=(4,)))
        >>> import asyncio
        >>> async def main():
        ...     async with await mesh.Mesh.builder().build_async() as m, mesh.AsyncInferenceServer(m) as server:
        ...         await server.load_model("count", model)
        ...         print([token async for token in server.generate("count", [0])])
        >>> asyncio.run(main())
        [1, 2, 3, 4]
        """
        return self._begin(name, prompt, Request(max_new_tokens, temperature, top_k, top_p, seed, stop, ends))

    def _begin(self, name: str, prompt: Prompt, request: Request) -> Reply:
        """Begin to go on with a prompt, with the options as one value."""
        return self._served(name).begin(prompt, request)

    @names_checked
    def loaded_models(self) -> tuple[LoadedModel, ...]:
        """List the models with what they do now.

        Returns
        -------
        tuple of LoadedModel
            The models, by name.
        """
        return tuple([served.report(name) for name, served in sorted(self._models.items())])

    @names_checked
    async def unload_model(self, name: str) -> None:
        """Cancel what is asked of a model, and free what it has on the workers.

        Parameters
        ----------
        name : str
            The model's name on this server.

        Raises
        ------
        InputError
            If no model has this name.
        """
        served = self._served(name)
        del self._models[name]
        await served.close()

    async def close(self) -> None:
        """Unload all models."""
        self._closed = True
        await to_the_end(self._unload_all())

    async def _unload_all(self) -> None:
        async with contextlib.AsyncExitStack() as closing:  # all of them, whatever one raises
            while self._models:
                closing.push_async_callback(self._models.popitem()[1].close)

    async def __aenter__(self) -> AsyncInferenceServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _served(self, name: str) -> _ServedModel:
        self._check_open()
        served = self._models.get(name) if isinstance(name, str) else None
        if served is None:
            known = ", ".join(sorted(self._models)) or "none"
            raise InputError(f"no model is called {name!r}", next_step=f"Loaded: {known}")
        return served

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("this server is closed")


class InferenceServer:
    """Several models that answer requests, and go on with texts, on one mesh.

    Any thread may ask.  Close it, or use it as a context manager.

    Parameters
    ----------
    mesh : Mesh
        The mesh; it stays open when the server is closed.

    Raises
    ------
    InputError
        If it is no `mesh.Mesh`.

    Notes
    -----
    Requests that come at the same time are computed together.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(2).build() as m, mesh.InferenceServer(m) as server:
    ...     server.load_model("double", lambda x: x * 2, max_batch=4)
    ...     print(server.infer("double", np.ones((1, 3))))
    ...     print([model.name for model in server.loaded_models()])
    ...     server.unload_model("double")
    [[2. 2. 2.]]
    ['double']
    """

    @names_checked
    def __init__(self, mesh: Mesh) -> None:
        if not isinstance(mesh, Mesh):
            use = "AsyncInferenceServer is for those" if isinstance(mesh, AsyncMesh) else "Use Mesh.builder()...build()"
            raise InputError(f"InferenceServer serves on a mesh.Mesh, got {mesh!r:.60}", next_step=use)
        self._mesh = mesh
        self._async = AsyncInferenceServer(mesh.on_loop)

    def __repr__(self) -> str:
        return f"<{self._async._text('InferenceServer')}>"

    @optioned
    def load_model(
        self,
        name: str,
        model: Source,
        mesh: Mesh | None = None,
        *,
        max_batch: int = 8,
        max_wait_ms: float = 2.0,
        queue: int = 64,
        replicas: int = 1,
        chunk: int = 16,
        batched: bool | None = None,
        strategy: str = "auto",
        mode: str = "auto",
        copies: str | None = None,
        kv_budget: int | str | None = None,
        draft: str | Path | Model | None = None,
        draft_tokens: int = 4,
        draft_on: str | None = None,
    ) -> None:
        """Serve a model under a name.

        Parameters
        ----------
        name : str
            The model's name on this server.
        model : str, Path, Model, WireGraph or callable
            A path as for `mesh.load`, a model, a function of arrays, or a graph, which takes any number of rows: it is
            computed in blocks of as many as it was traced for.
        mesh : Mesh, optional
            This server's own mesh, which need not be given.
        max_batch : int, optional
            Rows that are computed together at most, and texts that go on together.
        max_wait_ms : float, optional
            Milliseconds after which a batch that is not full is computed.
        queue : int, optional
            Requests that may wait beside what is computed, and as many texts.
        replicas : int, optional
            How often a language model is there, each time on workers of its own where there are enough.
        chunk : int, optional
            Tokens of a prompt that a step reads.
        batched : bool, optional
            Whether the first axis of inputs and outputs is one of rows that do not depend on each other; by default as
            the model's file says, and False on a reproducible mesh.
        strategy : str, optional
            How a call is placed, as for `Mesh.run`.
        mode : str, optional
            Where a call is computed, as for `Mesh.run`.
        copies : str, optional
            The copies of the weights that workers keep, as for `Mesh.run`.
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

        Raises
        ------
        InputError
            If the name is taken, an option is wrong or not known, or it is no model.
        ConfigError
            If the server is closed.

        Notes
        -----
        Weights go to the workers when they are first needed.
        """
        _check_mesh(mesh, self._mesh)
        options = Options(
            max_batch, max_wait_ms, queue, replicas, chunk, batched, strategy, mode, copies, kv_budget, draft,
            draft_tokens, draft_on,
        )  # fmt: skip
        self._mesh.wait(self._async._serve(name, model, options))

    @names_checked
    def infer(self, name: str, /, *inputs: Any, **named: Any) -> Any:
        """Compute a model's outputs.

        Parameters
        ----------
        name : str
            The model's name on this server.
        *inputs : array_like
            The inputs by place, or one mapping of them by name.
        **named : array_like
            The inputs by name.

        Returns
        -------
        Any
            The outputs, as `Mesh.run` gives them.

        Raises
        ------
        InputError
            If no model has this name, or the inputs do not fit.
        QueueFull
            At once, if too many wait already.
        """
        return self._mesh.wait(self._async.infer(name, *inputs, **named))

    @optioned
    def generate(
        self,
        name: str,
        prompt: Prompt,
        *,
        stream: bool = False,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Stop = None,
        ends: int | Iterable[int] | None = None,
    ) -> Any:
        """Go on with a prompt.

        Parameters
        ----------
        name : str
            The model's name on this server.
        prompt : str or sequence of int
            A text, or tokens.
        stream : bool, optional
            Whether to give pieces as they come, and not all at once.
        max_new_tokens : int, optional
            How many tokens follow at most: by default 128, or as many as the model has positions for.
        temperature : float, optional
            0 takes the likeliest token; else logits are divided by it, and a token is drawn.
        top_k : int, optional
            How many of the likeliest tokens are drawn from; 0 for all.
        top_p : float, optional
            The probability that the tokens which are drawn from have together; 1 for all.
        seed : int, optional
            The seed of the draws.
        stop : str, int or sequence of these, optional
            Texts before which the answer ends, and tokens at which it ends.
        ends : int or iterable of int, optional
            The tokens that end an answer; by default the model's own.

        Returns
        -------
        str, list of int, or iterator of pieces
            What is new: text for a text, tokens for tokens.

        Raises
        ------
        InputError
            If no model has this name, or the inputs do not fit.
        QueueFull
            At once, if too many wait already.

        Examples
        --------
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import mesh
        >>> from mesh.models.decoder import Decoder, Text
        >>> following = {"rows": np.roll(np.eye(5, dtype=np.float32), 1, axis=1)}  # token 1 follows 0, and so on
        >>> embed, head = lambda params, ids, at: params["rows"][ids], lambda params, x: x
        >>> decoder = Decoder(embed, print, head, (), 1, 1, None, "rows")
        >>> model = mesh.Model("count", print, [], [], following, Text(decoder, Path(), ends=(4,)))
        >>> with mesh.Mesh.builder().build() as m, mesh.InferenceServer(m) as server:
        ...     server.load_model("count", model)
        ...     print(server.generate("count", [0], max_new_tokens=3))
        ...     print(list(server.generate("count", [0], stream=True)))
        [1, 2, 3]
        [1, 2, 3, 4]
        """
        choice(stream, "stream")
        request = Request(max_new_tokens, temperature, top_k, top_p, seed, stop, ends)
        reply = self._mesh.wait(_soon(lambda: self._async._begin(name, prompt, request)))
        return self._pieces(reply) if stream else self._mesh.wait(reply.all())

    @names_checked
    def loaded_models(self) -> tuple[LoadedModel, ...]:
        """List the models with what they do now.

        Returns
        -------
        tuple of LoadedModel
            The models, by name.
        """
        return self._mesh.wait(_soon(self._async.loaded_models))

    @names_checked
    def unload_model(self, name: str) -> None:
        """Cancel what is asked of a model, and free what it has on the workers.

        Parameters
        ----------
        name : str
            The model's name on this server.

        Raises
        ------
        InputError
            If no model has this name.
        """
        self._mesh.wait(self._async.unload_model(name))

    def close(self) -> None:
        """Unload all models."""
        self._mesh.wait(self._async.close())

    def __enter__(self) -> InferenceServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pieces(self, reply: Reply) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(reply, None)

        try:
            while (piece := self._mesh.wait(following())) is not None:
                yield piece
        finally:
            self._mesh.wait(_soon(reply.cancel))


class _ServedModel:
    """A model with its queues."""

    def __init__(self, mesh: AsyncMesh, model: Model | Callable[..., Any], options: Options) -> None:
        self.model = model
        self.replicas: ReplicaSet | None = None  # for a model that does not generate text
        batched = options.batched
        if batched and mesh.reproducible:
            options = replace(options, strategy=by_rows(options.strategy))
        if batched is None:
            batched = (is_batched(model) if isinstance(model, Model) else True) and not mesh.reproducible
        self.request_runner = RequestRunner(mesh, model, options, batched)
        self._tokenizer: Tokenizer | None = None

    def begin(self, prompt: Prompt, request: Request) -> Reply:
        """Go on with a prompt in the batch that has least to do."""
        if not isinstance(self.model, Model):
            raise InputError("a function does not generate text")
        text = text_of(self.model)
        if isinstance(prompt, str) and self._tokenizer is None:
            self._tokenizer = tokenizer_of(text)
        assert self.replicas is not None
        return request.begin(self.replicas, self._tokenizer, prompt)

    def report(self, name: str) -> LoadedModel:
        """What the model does now."""
        weights = self.model.weights.values() if isinstance(self.model, Model) else ()
        texts, steps = (self.replicas.active, self.replicas.steps) if self.replicas is not None else (0, 0)
        waiting = self.request_runner.waiting + (self.replicas.waiting if self.replicas is not None else 0)
        drafts = (self.replicas.drafted, self.replicas.accepted) if self.replicas is not None else (0, 0)
        size = sum(weight.nbytes for weight in weights)
        return LoadedModel(name, size, waiting, texts, self.request_runner.batches, steps, *drafts)

    async def close(self) -> None:
        """Cancel everything; whoever is cancelled meanwhile, it is done to the end."""
        await to_the_end(self._end())

    async def _end(self) -> None:
        try:
            await self.request_runner.close()
        finally:
            if self.replicas is not None:
                await self.replicas.close()


def _check_mesh(given: object, own: Mesh | AsyncMesh) -> None:
    if given is not None and given is not own:
        raise InputError(
            f"this server serves on {own!r}, not on {given!r:.60}", next_step="Leave it out, or make a server on it"
        )


def _loaded(source: Source, by_rows: bool) -> Model | Callable[..., Any]:
    """What answers; a graph as a function, of any number of rows where they do not depend on each other."""
    if isinstance(source, WireGraph):
        return _graph_model(source, by_rows)
    model = load(source) if isinstance(source, str | Path) else source
    if isinstance(model, Model):
        _ = model.handles  # hashed now, and not while somebody waits
    elif not callable(model):
        raise InputError(f"{model!r} is no model", next_step="Give a path, a mesh.Model, a function or a graph")
    return model


def _graph_model(graph: WireGraph, by_rows: bool) -> Callable[..., Any]:
    """A graph as a function of its inputs, as `Mesh.run` calls one."""
    if graph.param_types:
        raise InputError(
            f"the graph has the param {next(iter(graph.param_types))!r}, and not its value",
            next_step="Load the function that it was traced of, or the file of graph.save(path, params)",
        )
    computed = graph_function(graph, tuple(graph.input_types) if by_rows else ())

    def answer(*inputs: Any) -> Any:
        outputs = computed(*inputs)
        return outputs[0] if len(outputs) == 1 else dict(zip(graph.output_names, outputs, strict=True))

    model: Any = answer
    model.__name__ = graph.name or "graph"
    names = [name if name.isidentifier() else f"input_{at}" for at, name in enumerate(graph.input_types)]
    places = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    model.__signature__ = inspect.Signature(places)
    return answer


async def _soon(call: Callable[[], Any]) -> Any:
    return call()
