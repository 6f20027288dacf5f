"""Flags of the verbs about served models; their files are imported only when one runs."""

from __future__ import annotations

import argparse

from .find_coordinator import COORDINATOR_HELP
from .flags import add_timeouts, port

URL = "http://127.0.0.1:7200"


def serve_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of serve-model."""
    folder = "a folder, a GGUF file or ORG/NAME on the hub; NAME=MODEL chooses the name (repeatable)"
    parser.add_argument("model", metavar="MODEL", nargs="+", help=folder)
    parser.add_argument(
        "--name", default="", metavar="N", help="the name by which requests name the model (default: its folder's name)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine alone)")
    parser.add_argument("--port", type=port, default=7200, metavar="N", help="the port (default: %(default)s; 0: any)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--coordinator", metavar="HOST:PORT", help=COORDINATOR_HELP)
    where.add_argument("--local", type=int, metavar="N", help="compute on N new workers of this machine")
    engine = "the device of these workers, as mesh-worker --device takes it (default: %(default)s)"
    parser.add_argument("--engine", default="auto", metavar="DEVICE", help=engine)
    batch = "requests that each batch generates together (default: %(default)s)"
    parser.add_argument("--max-batch", type=int, default=8, metavar="N", help=batch)
    waiting = "requests of each model that may wait; others are refused with 429 (default: %(default)s)"
    parser.add_argument("--queue", type=int, default=64, metavar="N", help=waiting)
    parser.add_argument(
        "--replicas",
        type=int,
        default=1,
        metavar="N",
        help="how often each language model is there, on workers of its own where there are enough (default: 1)",
    )
    chunk = "tokens of a prompt that one step reads (default: %(default)s)"
    parser.add_argument("--chunk", type=int, default=16, metavar="N", help=chunk)
    kept = "most memory for keys and values of the texts of a replica, such as 4GiB (default: a quarter of a worker's)"
    parser.add_argument("--kv-budget", default="", metavar="SIZE", help=kept)
    draft = "a much smaller model with the same tokens, the drafter: a step checks several tokens that it proposes"
    parser.add_argument("--draft", default="", metavar="MODEL", help=draft)
    drafts = "the most tokens that the drafter proposes for a step (default: 4)"
    parser.add_argument("--draft-tokens", type=int, metavar="N", help=drafts)
    on = "the worker that computes the drafter (default: the one that is predicted to be fastest)"
    parser.add_argument("--draft-on", default="", metavar="WORKER", help=on)
    parser.add_argument(
        "--strategy", default="auto", help="how the model is placed on the workers (default: %(default)s)"
    )
    layers = "place layers FIRST to STOP - 1 on a worker, such as anna=0..20 (repeatable; all layers of the one model)"
    parser.add_argument("--layers", action="append", default=[], metavar="WORKER=FIRST..STOP", help=layers)
    experts = "place experts FIRST to STOP - 1 of every layer on a worker; others are with their layer (repeatable)"
    parser.add_argument("--experts", action="append", default=[], metavar="WORKER=FIRST..STOP", help=experts)
    idle = (
        "unload a model from the workers once nobody has asked for it so long, such as 10m; the next request loads it"
    )
    parser.add_argument("--unload-after", default="", metavar="TIME", help=f"{idle} (default: it stays)")
    parser.add_argument("--max-body", default="16MiB", metavar="SIZE", help="largest request (default: %(default)s)")
    parser.add_argument("--require-key", action="store_true", help="also require a key of programs of this machine")
    parser.add_argument("--tls-cert", default="", metavar="FILE", help="serve HTTPS with this certificate (PEM)")
    parser.add_argument("--tls-key", default="", metavar="FILE", help="the key of the certificate (PEM)")
    mesh_tls = "serve HTTPS with a certificate of the mesh's authority, which has to be on this machine"
    parser.add_argument("--tls-mesh", action="store_true", help=mesh_tls)
    plain = "serve other machines without TLS, behind a proxy that has it"
    parser.add_argument("--plain-http", action="store_true", help=plain)
    host = "another host name of this server (repeatable)"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=host)
    origin = "a site whose pages may send requests, such as https://chat.example (repeatable)"
    parser.add_argument("--allow-origin", action="append", default=[], metavar="ORIGIN", help=origin)
    folder = "the folder with the mesh's folder, which has the keys (default: the user's state folder)"
    parser.add_argument("--state-dir", default="", metavar="DIR", help=folder)
    add_timeouts(parser)


def chat_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of chat."""
    parser.add_argument("model", metavar="MODEL", help="the name of a served model")
    parser.add_argument("--url", default=URL, help="the server (default: %(default)s)")
    parser.add_argument("--key-file", default="", metavar="FILE", help="a file with the API key, if one is needed")
    parser.add_argument(
        "--system", default="", metavar="TEXT", help="the system message, which precedes the conversation"
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="0 takes the likeliest tokens (default: 1)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="the longest answer")
