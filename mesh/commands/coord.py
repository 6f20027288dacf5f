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

from wire.errors import MeshError
from wire.policy.redundancy import OF_CALLS, copies_of
from wire.policy.strategies import STRATEGIES
from wire.system.log_ring import start_logging
from wire.timeouts import DEFAULT_TIMEOUTS

from .exit_codes import INTERRUPTED, OK, run_command
from .find_coordinator import Ask, on_a_coordinator
from .flags import add_common, add_health, add_listening, add_timeouts, command, timeouts, verbosity
from .launch import launch, launch_arguments
from .membership import authority_arguments, join, join_arguments, nodes_arguments, token_arguments
from .topology import show as topology
from .topology import topology_arguments

Options = argparse.Namespace


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    ring = start_logging(verbosity(options), options.log_json)
    try:
        code = run_command("mesh-coord", lambda: options.run(options), options.interrupted)
    finally:
        ring.close()
    sys.exit(code)


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
    """A verb's function, whose file is imported when it is run: --help needs nothing of what it needs."""
    return lambda *given: getattr(import_module(f".{file}", __package__), name)(*given)


# -- the table of verbs -----------------------------------------------------------------------------------


def _graph_argument(made: argparse.ArgumentParser) -> None:
    made.add_argument("graph", metavar="GRAPH", help="a .wire file, written by WireGraph.save, or a model")
    made.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input (repeatable)")
    made.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help="a free dimension of a model")
    made.add_argument("--strategy", default="auto", choices=STRATEGIES, help="how to place it")
    made.add_argument("--use-all", action="store_true", help="give every worker work, though fewer were faster")
    same = "only a plan of which any other one has the same bits, whoever is there and whatever dies"
    made.add_argument("--reproducible", action="store_true", help=same)
    kept = f"what workers keep of each other's params: {', '.join(OF_CALLS)}, or 'coded K of N'"
    made.add_argument("--copies", default="checkpoint", type=_copies, metavar="POLICY", help=kept)


def _copies(text: str) -> str:
    try:
        return copies_of(text, OF_CALLS).text
    except MeshError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _plan_arguments(made: argparse.ArgumentParser) -> None:
    _graph_argument(made)
    made.add_argument("--svg", metavar="FILE", help="also write a picture of who runs what when")
    dies = "tell, too, what follows from the death of this worker: the plan then, and which weights move from where"
    made.add_argument("--what-if-dies", default="", metavar="NAME", help=dies)


def _output_argument(made: argparse.ArgumentParser) -> None:
    where = "where outputs are written, NAME.npy each (default: a folder named after the job)"
    made.add_argument("--output", metavar="DIR", help=where)


def _submit_arguments(made: argparse.ArgumentParser) -> None:
    _graph_argument(made)
    _output_argument(made)
    made.add_argument("--detach", action="store_true", help="print the job's id and return; the job goes on")


def _serve_arguments(made: argparse.ArgumentParser) -> None:
    add_listening(made, peer="a worker to join (repeatable)")
    made.add_argument("--name", default="coordinator", help="what people call it")
    made.add_argument("--state-dir", default="", metavar="DIR", help="where its identity and its jobs are kept")
    audits = "compute this fraction of the parts again elsewhere and compare: 0.02, say"
    made.add_argument("--audit", type=float, default=0.0, metavar="FRACTION", help=audits)
    ahead = "do not plan for the death of each worker before one dies"
    made.add_argument("--no-plan-ahead", dest="plan_ahead", action="store_false", help=ahead)
    same = "only plans of which all have the same bits; what cannot have them is refused"
    made.add_argument("--reproducible", action="store_true", help=same)
    default_s = DEFAULT_TIMEOUTS.collective_timeout_s
    waits = f"how long the ranks of a program wait for each other (default {default_s:g})"
    made.add_argument("--collective-timeout", type=float, metavar="S", help=waits)
    made.add_argument("--keep-results", metavar="TIME", help="how long jobs are kept once over (default 24h)")
    sessions = "how long a client that lost its link finds its sessions as they were (default 60s)"
    made.add_argument("--keep-sessions", metavar="TIME", help=sessions)
    add_health(made)


def _job_argument(made: argparse.ArgumentParser) -> None:
    made.add_argument("job", metavar="JOB")


def _result_arguments(made: argparse.ArgumentParser) -> None:
    _job_argument(made)
    _output_argument(made)


def _status_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("job", metavar="JOB", nargs="?", help="one job (default: all)")


def _demo_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("question", nargs="?", help="what to search for (default: asked, or a sample question)")
    one = "a document to search, such as journey.md (repeatable; default: all)"
    made.add_argument("--document", action="append", default=[], metavar="NAME", help=one)
    add_health(made)


def _asking_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("--coordinator", metavar="HOST:PORT", help="default MESH_ADDRESS, else this machine's")
    add_timeouts(made)


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
    "nodes": Verb(
        "show the workers and their devices, pause one, or throw one out",
        nodes_arguments,
        remote=later("remote_verbs", "nodes"),
    ),
    "token": Verb("make, list and withdraw join tokens", token_arguments),
    "authority": Verb("show the mesh's authority, or replace it", authority_arguments),
    "join": Verb("become a client of a mesh elsewhere, with a token", join_arguments, local=join),
    "topology": Verb("show workers, devices and the links between them", topology_arguments, remote=topology),
    "plan": Verb(
        "show what would go where, before a byte moves",
        _plan_arguments,
        remote=later("remote_verbs", "plan"),
        files=("graph",),
    ),
    "submit": Verb("run a graph", _submit_arguments, remote=later("remote_verbs", "submit"), files=("graph",)),
    "status": Verb("show jobs", _status_arguments, remote=later("remote_verbs", "status")),
    "logs": Verb("show what happened to a job", _job_argument, remote=later("remote_verbs", "logs")),
    "result": Verb("wait for a job and write its outputs", _result_arguments, remote=later("remote_verbs", "result")),
    "cancel": Verb("stop a job", _job_argument, remote=later("remote_verbs", "cancel")),
    "launch": Verb("run a script as several ranks", launch_arguments, local=launch, interrupted=INTERRUPTED),
    "doctor": Verb("tell what is wrong with the mesh and what to do about it", _asking_arguments, local=doctor),
    "demo": Verb("a real model over three workers, one of them killed", _demo_arguments, local=demo),
}


def parser() -> argparse.ArgumentParser:
    made = command("mesh-coord", "Run a coordinator, and ask one for nodes, plans and jobs.")
    add_common(made)
    verbs = made.add_subparsers(required=True, metavar="VERB")
    for name, verb in VERBS.items():
        one = verbs.add_parser(name, help=verb.help, description=verb.help)
        verb.arguments(one)
        add_common(one, keep=True)  # flags may stand before the verb or after it
        if verb.remote is not None:
            _asking_arguments(one)
        one.set_defaults(interrupted=verb.interrupted)
        run = verb.local or (on_a_coordinator(verb.remote, verb.files) if verb.remote else None)
        if run is not None:  # a verb of several actions has a function for each
            one.set_defaults(run=run)
    return made


if __name__ == "__main__":
    main()
