"""`mesh-coord serve-model`: models of the mesh behind the HTTP interfaces of OpenAI, Anthropic and Ollama."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

from wire.errors import ConfigError, ConnectFailed, InputError, StorageError
from wire.link.address_policy import ANYWHERE, is_loopback
from wire.link.interfaces import advertised, interfaces_here, judge, usable
from wire.policy.strategies import Auto, Strategy
from wire.security.tls import web_context
from wire.system.malloc import give_back
from wire.system.signals import watch_signals
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks, as_error

from ..backends.enrolment import is_client
from ..client.async_mesh import AsyncMesh
from ..inference.layer_placement import by_numbers
from ..inference.settings import Options as ModelOptions
from ..models.load import load
from ..models.store import located, whole_model
from ..serving.access import Access
from ..serving.api_keys import ApiKeys
from ..serving.http_server import Listening
from ..serving.model_server import AsyncModelServer
from ..util.units import parse_duration, parse_size
from .exit_codes import OK
from .find_coordinator import connect, named
from .flags import mesh_name
from .keys import keys_file
from .output import say, say_lines
from .progress import download_progress
from .web_certificate import WebCertificate, names_here

log = steady_logger("graph_mesh.serving")

GIVE_BACK_S = 30.0
Options = argparse.Namespace


def serve_model(options: Options) -> int:
    """Serve models until it is told to stop."""
    certificate = _certificate(options)
    listening = _listening(options, certificate)
    models = _models(options)  # downloads block: there is no loop yet, so Ctrl-C ends one
    draft = _draft(options, models)
    strategy = _strategy(options, models)
    return asyncio.run(_serve(options, models, draft, strategy, certificate, listening))


async def _serve(
    options: Options, models: dict[str, Path], draft: Path | None, strategy: str | Strategy,
    certificate: WebCertificate | None, listening: Listening,
) -> int:  # fmt: skip
    """Serve until a signal comes, which may come before anything is served."""
    loop = asyncio.get_running_loop()
    stopped = loop.create_future()
    watch_signals(loop, lambda why: stopped.set_result(why))
    serving = loop.create_task(_served(options, models, draft, strategy, certificate, listening))
    await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    return OK


async def _served(
    options: Options, models: dict[str, Path], draft: Path | None, strategy: str | Strategy,
    certificate: WebCertificate | None, listening: Listening,
) -> None:  # fmt: skip
    """Load models, and serve them until this is cancelled."""
    how = ModelOptions(
        max_batch=options.max_batch, queue=options.queue, replicas=options.replicas, chunk=options.chunk,
        strategy=strategy, kv_budget=options.kv_budget or None, draft=draft, draft_on=options.draft_on or None,
        draft_tokens=4 if options.draft_tokens is None else options.draft_tokens,
    )  # fmt: skip
    unload_after_s = parse_duration(options.unload_after) if options.unload_after else None
    own, beside = await _mesh(options), Tasks()
    if certificate:
        beside.keep("renewing the server's certificate", certificate.keep)
    try:
        async with AsyncModelServer(own, listening) as server:
            for name, path in models.items():
                _tell(options, f"loading {name} from {path}")
                await server.load_model(name, path, how, unload_after_s)
            _tell_ready(options, server.url, list(models), listening)
            beside.keep("loading models anew", partial(_reload_at_signals, options, server, list(models)))
            beside.keep("giving memory back", _give_memory_back)
            try:
                await asyncio.Event().wait()
            finally:  # nothing is loaded while the server closes
                beside.cancel()
    finally:
        beside.cancel()
        await own.close()


async def _reload_at_signals(options: Options, server: AsyncModelServer, models: list[str]) -> None:
    """Load all models anew, one after the other, whenever SIGHUP says so; what fails stays as it was."""
    asked = asyncio.Event()
    if hasattr(signal, "SIGHUP"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, asked.set)
    while True:
        await asked.wait()
        asked.clear()
        for name in models:
            try:
                await server.reload_model(name)
            except Exception as fault:  # whatever it is: requests go on with what there is
                error = as_error(f"loading {name} failed", fault)
                log.warning("%s could not be loaded anew, and stays as it was: %s", name, error)
                continue
            with contextlib.suppress(BrokenPipeError, StorageError):  # whoever reads it may be gone
                _tell(options, f"{name} is loaded anew")


async def _give_memory_back() -> None:
    """Give freed memory back once in a while: of the heap of a server whose requests and models come and go, more than
    half may be free."""
    while True:
        await asyncio.sleep(GIVE_BACK_S)
        await asyncio.to_thread(give_back)


async def _mesh(options: Options) -> AsyncMesh:
    """The mesh of --local, of the coordinator that is named, or of the one on this machine; else one worker here."""
    builder = AsyncMesh.builder().mesh(mesh_name(options))
    if options.local is not None:
        return await builder.local(options.local, options.engine).build_async()
    found = None
    if named(options) is not None:
        found = await connect(options)
    elif is_client(mesh_name(options)):
        with contextlib.suppress(ConnectFailed):
            found = await connect(options)
    if found is not None:
        own = AsyncMesh(found, builder.config.copies)
        if options.engine != "auto":
            await own.close()
            raise ConfigError(
                f"--engine {options.engine} is for new workers, and those of a coordinator would compute",
                next_step="Give --local N, too, or leave --engine out",
            )
        return own
    _tell(options, "no coordinator on this machine: one worker of this machine computes, as with --local 1")
    return await builder.local(1, options.engine).build_async()


def _models(options: Options) -> dict[str, Path]:
    """The models to serve, by name: NAME=MODEL, or a model that gives its own name.  It downloads those of the hub."""
    if options.name and len(options.model) > 1:
        raise ConfigError("--name is for one model", next_step="Write NAME=MODEL for each of several")
    models: dict[str, Path] = {}
    for text in options.model:
        name, equals, path = text.partition("=")
        folder = _found(options, path if equals else text)
        name = options.name or (name if equals else _own_name(folder))
        if name in models:
            raise ConfigError(f"two models are called {name!r}", next_step="Write NAME=MODEL for each")
        models[name] = folder
    return models


def _own_name(folder: Path) -> str:
    """The name that a model's path ends in.  Links stay: caches of hubs call the file of a link by its hash."""
    return Path(os.path.abspath(folder)).name.removesuffix(".gguf")


def _draft(options: Options, models: dict[str, Path]) -> Path | None:
    """The drafter of the one model that is served; None without one."""
    if not options.draft:
        if options.draft_tokens is not None:
            raise ConfigError("--draft-tokens is for a drafter, and there is none", next_step="Give --draft MODEL, too")
        return None
    if len(models) > 1:
        raise ConfigError("--draft is for one model", next_step="Serve each model that has a drafter by itself")
    return _found(options, options.draft)


def _strategy(options: Options, models: dict[str, Path]) -> str | Strategy:
    """How models are placed: --strategy, or the one model where --layers and --experts say."""
    if not options.layers:
        if options.experts:
            raise ConfigError("--experts places experts apart from their layers", next_step="Give --layers, too")
        return str(options.strategy)
    if len(models) > 1 or options.strategy != Auto.word:
        raise ConfigError(
            "--layers is for one model, and in place of --strategy",
            next_step="Serve each model that has its layers placed by itself",
        )
    (path,) = models.values()
    return by_numbers(load(path).weights, options.layers, options.experts)


def _found(options: Options, text: str) -> Path:
    """The folder or file of a model; one of the hub is downloaded."""
    with download_progress(not options.json and not options.quiet) as report:
        folder = located(text, report)
    what = ""
    if folder.is_dir():  # now, and not when a worker has begun
        if whole_model(folder) == folder and not (folder / "config.json").exists():
            what = f"{folder} has neither a config.json nor a GGUF file"
    elif folder.suffix != ".gguf":
        what = f"{folder} is no model" if folder.exists() else f"there is no folder or file {folder}"
    if what:
        raise InputError(what, next_step="Give a folder with config.json and safetensors, a GGUF file, or ORG/NAME")
    return folder


def _listening(options: Options, certificate: WebCertificate | None) -> Listening:
    keys = ApiKeys(keys_file(mesh_name(options), options.state_dir))
    local = is_loopback(options.host)
    if not local and not keys.records():
        raise ConfigError(
            f"will not serve on {options.host} without API keys: anybody who reaches it could use it",
            next_step="Create one with: mesh-coord keys create NAME",
        )
    tls = web_context(Path(options.tls_cert), Path(options.tls_key)) if options.tls_cert else None
    if not local and tls is None and certificate is None and not options.plain_http:
        raise ConfigError(
            f"will not serve on {options.host} without TLS: keys and texts could be read on the way",
            next_step="Give --tls-cert and --tls-key, or --tls-mesh, or --plain-http behind a proxy that has TLS",
        )
    hosts = frozenset({*(each.lower() for each in options.allow_host), options.host})
    return Listening(
        options.host, options.port, certificate.context if certificate else tls,
        Access(hosts, frozenset(options.allow_origin)), None if local and not options.require_key else keys,
        parse_size(options.max_body),
    )  # fmt: skip


def _certificate(options: Options) -> WebCertificate | None:
    """The certificate of --tls-mesh."""
    if bool(options.tls_cert) != bool(options.tls_key) or (options.tls_cert and options.tls_mesh):
        raise ConfigError("--tls-cert and --tls-key go together, and without --tls-mesh")
    if not options.tls_mesh:
        return None
    mesh = mesh_name(options)
    folder = keys_file(mesh, options.state_dir).parent
    return WebCertificate(mesh, options.state_dir, folder, names_here(options.host, options.allow_host))


def _tell(options: Options, text: str) -> None:
    if not options.json and not options.quiet:
        say_lines(text, file=sys.stderr)


def _tell_ready(options: Options, url: str, models: list[str], listening: Listening) -> None:
    if options.json:
        say(json.dumps({"url": url, "models": models}), flush=True)
        return
    needed = "an API key is needed" if listening.keys is not None else "programs of this machine need no key"
    scheme, _, at = url.partition("://")
    others = advertised(ANYWHERE, listening.host, int(at.rpartition(":")[2]), usable(judge(interfaces_here())))
    url = f"{scheme}://{next(iter(others), at)}"  # 0.0.0.0 is no address to type elsewhere
    say(f"serving {', '.join(models)} at {url} ({needed})")
    say(f"  chat page: {url}/    OpenAI base URL: {url}/v1    Ollama host: {url}", flush=True)
