"""mesh-coord: run a coordinator, and ask one for nodes, plans and jobs.

A verb is one function here and one row of VERBS.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from wire.bounds import JOB_BYTES_WAITING, JOBS_OF_CLIENT, JOBS_WAITING
from wire.errors import MeshError
from wire.policy.redundancy import OF_CALLS, copies_of
from wire.policy.strategies import STRATEGIES
from wire.system.log_ring import start_logging
from wire.timeouts import DEFAULT_TIMEOUTS

from .exit_codes import INTERRUPTED, OK, run_command
from .explain import explain_arguments
from .find_coordinator import COORDINATOR_HELP, Ask, on_a_coordinator
from .flags import add_common, add_health, add_listening, add_timeouts, command, name_of_one, timeouts, verbosity
from .keys import keys_arguments
from .launch import launch, launch_arguments
from .membership import (
    authority_arguments,
    join,
    join_arguments,
    nodes_arguments,
    promote_arguments,
    sessions_arguments,
    token_arguments,
)
from .model_flags import chat_arguments, serve_model_arguments
from .models import models_arguments
from .topology import show as topology
from .topology import topology_arguments

Options = argparse.Namespace


def main(arguments: Sequence[str] | None = None) -> None:
    sys.exit(run_command("mesh-coord", lambda: work(parser().parse_args(arguments)), INTERRUPTED))


def work(options: Options) -> int:
    ring = start_logging(verbosity(options), options.log_json)
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        code = options.interrupted
    finally:
        ring.close()
    return code


# -- verbs ------------------------------------------------------------------------------------------------


def serve(options: Options) -> int:
    """Run a coordinator until it is told to stop."""
    from .serve import serve_until_stopped

    return asyncio.run(serve_until_stopped(options))


def doctor(options: Options) -> int:
    """Look at the mesh and at this machine."""
    from .doctor import doctor as look

    return look(options)


def demo(options: Options) -> int:
    """MiniLM over three workers, one of them killed on the way."""
    from ..demo.show import show

    return show(options.question, timeouts=timeouts(options), documents=options.document)


def later(file: str, name: str) -> Callable[..., Any]:
    """A function of a verb whose file is imported only when the verb runs, so that --help is fast."""
    return lambda *arguments: getattr(import_module(f".{file}", __package__), name)(*arguments)


# -- the table of verbs -----------------------------------------------------------------------------------


def _graph_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("graph", metavar="GRAPH", help="a .wire file (WireGraph.save writes one), or a model")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="the value of an input (repeatable)"
    )
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="the size of a free dimension of a model (repeatable)",
    )
    parser.add_argument("--strategy", default="auto", choices=STRATEGIES, help="how to place it (default: %(default)s)")
    parser.add_argument("--use-all", action="store_true", help="use every worker, even where fewer would be faster")
    same = "use only plans that all give the same bits, whichever workers there are"
    parser.add_argument("--reproducible", action="store_true", help=same)
    kept = f"the copies of params: {', '.join(OF_CALLS)}, or 'coded K of N' (default: %(default)s)"
    parser.add_argument("--copies", default="checkpoint", type=_copies, metavar="POLICY", help=kept)


def _copies(text: str) -> str:
    try:
        return copies_of(text, OF_CALLS).text
    except MeshError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    _graph_argument(parser)
    parser.add_argument("--svg", metavar="FILE", help="also write a drawing of the plan over time")
    dies = "also show the plan after the death of this worker, and which weights move then"
    parser.add_argument("--what-if-dies", default="", metavar="NAME", help=dies)


def _output_argument(parser: argparse.ArgumentParser) -> None:
    where = "the folder for outputs, NAME.npy each (default: a folder named after the job)"
    parser.add_argument("--output", metavar="DIR", help=where)


def _submit_arguments(parser: argparse.ArgumentParser) -> None:
    _graph_argument(parser)
    _output_argument(parser)
    parser.add_argument("--detach", action="store_true", help="print the job's id and return; the job goes on")


def _serve_arguments(parser: argparse.ArgumentParser) -> None:
    add_listening(parser, peer="a worker to connect to (repeatable)", host="all addresses")
    parser.add_argument("--name", default="coordinator", help="the name of the coordinator (default: %(default)s)")
    parser.add_argument(
        "--state-dir",
        default="",
        metavar="DIR",
        help="the folder of its identity and jobs (default: the user's state folder)",
    )
    standby = "follow the coordinator there, and take over when it is lost"
    parser.add_argument("--standby", default="", metavar="HOST:PORT", help=standby)
    arbiter = "a worker that votes on who serves, if there is a standby (repeatable; default: one or three of all)"
    parser.add_argument("--arbiter", action="append", default=[], metavar="NAME", help=arbiter)
    audits = "compute this fraction of the parts again on other workers and compare (default: %(default)g)"
    parser.add_argument("--audit", type=float, default=0.0, metavar="FRACTION", help=audits)
    theirs = "the same for workers that joined with an untrusted token (default: %(default)g)"
    parser.add_argument("--audit-untrusted", type=float, default=0.02, metavar="FRACTION", help=theirs)
    ahead = "do not plan for the death of each worker before one dies"
    parser.add_argument("--no-plan-ahead", dest="plan_ahead", action="store_false", help=ahead)
    same = "make only plans that all give the same bits, and refuse programs that have none"
    parser.add_argument("--reproducible", action="store_true", help=same)
    default_s = DEFAULT_TIMEOUTS.collective_timeout_s
    waits = f"seconds that the ranks of a program wait for each other (default: {default_s:g})"
    parser.add_argument("--collective-timeout", type=float, metavar="S", help=waits)
    running = "how many jobs of one client may run at once (default: %(default)s)"
    parser.add_argument("--client-jobs", type=int, default=JOBS_OF_CLIENT.most, metavar="N", help=running)
    waiting = "how many jobs of one client may wait (default: %(default)s)"
    parser.add_argument("--client-waiting", type=int, default=JOBS_WAITING.most, metavar="N", help=waiting)
    on_disk = "how large the values of the jobs of one client that wait may be together (default: %(default)s)"
    size = f"{JOB_BYTES_WAITING.most >> 30}GiB"
    parser.add_argument("--client-bytes", default=size, metavar="SIZE", help=on_disk)
    limit = "how long a job may run, such as 1h; 0: as long as it takes (default: %(default)s)"
    parser.add_argument("--job-time-limit", default="0", metavar="TIME", help=limit)
    parser.add_argument("--keep-results", metavar="TIME", help="how long finished jobs are kept (default: 24h)")
    sessions = "how long the sessions of a client without a link are kept (default: 60s)"
    parser.add_argument("--keep-sessions", metavar="TIME", help=sessions)
    named = "how long sessions with a name are kept while no program drives them (default: 7d)"
    parser.add_argument("--keep-named-sessions", metavar="TIME", help=named)
    add_health(parser)


def _job_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", type=name_of_one, help="the id of a job, as status shows it")


def _result_arguments(parser: argparse.ArgumentParser) -> None:
    _job_argument(parser)
    _output_argument(parser)


def _status_arguments(parser: argparse.ArgumentParser) -> None:
    one = "the id of one job (default: all jobs)"
    parser.add_argument("job", metavar="JOB", nargs="?", type=name_of_one, help=one)


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    asked = "the question to search for (default: asked for on a terminal, else a sample question)"
    parser.add_argument("question", metavar="QUESTION", nargs="?", help=asked)
    one = "a document to search, such as journey.md (repeatable; default: all)"
    parser.add_argument("--document", action="append", default=[], metavar="NAME", help=one)
    add_health(parser)


def _asking_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--coordinator", metavar="HOST:PORT", help=COORDINATOR_HELP)
    add_timeouts(parser)


@dataclass(frozen=True, slots=True)
class Verb:
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    local: Callable[[Options], int] | None = None
    remote: Ask | None = None
    files: tuple[str, ...] = ()  # options that name files which it reads
    interrupted: int = INTERRUPTED


VERBS: dict[str, Verb] = {
    "serve": Verb("run a coordinator on this machine", _serve_arguments, local=serve, interrupted=OK),
    "promote": Verb(
        "make a standby take over, when its voters cannot decide", promote_arguments, local=later("promote", "promote")
    ),
    "nodes": Verb(
        "show the workers and their devices; pause, resume or revoke one",
        nodes_arguments,
        remote=later("remote_verbs", "nodes"),
    ),
    "token": Verb("create, list and revoke join tokens", token_arguments),
    "authority": Verb("show the mesh's authority, or replace it", authority_arguments),
    "join": Verb("become a client of a mesh on another machine, with a token", join_arguments, local=join),
    "topology": Verb("show workers, devices and the links between them", topology_arguments, remote=topology),
    "plan": Verb(
        "show which device would run what; nothing is sent to workers",
        _plan_arguments,
        remote=later("remote_verbs", "plan"),
        files=("graph",),
    ),
    "explain": Verb(
        "show the kernels that a worker compiles a graph to, and what each takes there",
        explain_arguments,
        local=later("explain", "explain"),
        remote=later("explain", "ask"),
    ),
    "submit": Verb("run a graph as a job", _submit_arguments, remote=later("remote_verbs", "submit"), files=("graph",)),
    "status": Verb("show jobs", _status_arguments, remote=later("remote_verbs", "status")),
    "logs": Verb("show the log of a job", _job_argument, remote=later("remote_verbs", "logs")),
    "result": Verb("wait for a job and write its outputs", _result_arguments, remote=later("remote_verbs", "result")),
    "cancel": Verb("cancel a job", _job_argument, remote=later("remote_verbs", "cancel")),
    "sessions": Verb(
        "show your sessions that have a name; end one", sessions_arguments, remote=later("remote_verbs", "sessions")
    ),
    "serve-model": Verb(
        "serve models over HTTP, as OpenAI, Anthropic and Ollama do",
        serve_model_arguments,
        local=later("serve_model", "serve_model"),
        interrupted=OK,
    ),
    "models": Verb("download models from a hub, list and delete them", models_arguments),
    "keys": Verb("create, list and remove API keys of served models", keys_arguments),
    "chat": Verb("talk with a served model", chat_arguments, local=later("chat", "chat")),
    "launch": Verb("run a script as several ranks", launch_arguments, local=launch, interrupted=INTERRUPTED),
    "doctor": Verb(
        "check the mesh and this machine, and say what to do about problems", _asking_arguments, local=doctor
    ),
    "demo": Verb("search documents with a model on three workers, one of which is killed", _demo_arguments, local=demo),
}


def parser() -> argparse.ArgumentParser:
    root = command("mesh-coord", "Run a coordinator, and ask one for nodes, plans and jobs.")
    add_common(root)
    verbs = root.add_subparsers(required=True, metavar="VERB")
    for name, verb in VERBS.items():
        subparser = verbs.add_parser(name, help=verb.help, description=verb.help)
        verb.arguments(subparser)
        add_common(subparser, keep=True)  # flags may stand before the verb or after it
        if verb.remote is not None:
            _asking_arguments(subparser)
        subparser.set_defaults(interrupted=verb.interrupted)
        run = verb.local or (on_a_coordinator(verb.remote, verb.files) if verb.remote else None)
        if run is not None:  # a verb of several actions has a function for each
            subparser.set_defaults(run=run)
    return root


if __name__ == "__main__":
    main()
