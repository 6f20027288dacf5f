"""mesh-coord: run a coordinator, and ask one for nodes, plans and jobs.

A verb is one function here and one row of VERBS.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from coordinator.health import HealthConfig
from wire.errors import ConfigError, MeshError, from_fields
from wire.limits import MIB
from wire.logs import start_logging
from wire.messages import JobReport
from wire.redundancy import OF_CALLS, copies_of
from wire.strategies import STRATEGIES, Auto, text_of
from wire.timeouts import COLLECTIVE_TIMEOUT_S

from ..preview import PlanPreview
from ..remote import Remote, told
from ..sizes import size_text, speed_text
from .arrays import check_folder, write_outputs, write_text
from .exit_codes import INTERRUPTED, OK, print_log, run_command
from .flags import add_common, add_health, add_listening, command, node_timeout_s, verbosity
from .launch import launch, launch_arguments
from .members import authority_arguments, join, join_arguments, nodes_arguments, token_arguments
from .pairs import print_pairs
from .programs import read_graph, read_program
from .progress import progress
from .reaching import Ask, on_a_coordinator
from .tables import print_table
from .topology import show as topology
from .topology import topology_arguments

POLL_S = 0.1
SHOWN_BYTES_MIN = 8 * MIB  # sending less takes no time worth telling
OVER = ("done", "failed", "cancelled")
# How far a job is when its log says so, by the first word of a line.
STAGES = {"submitted": 0, "queued": 1, "running": 2, "planned": 3, "deployed": 4, "began": 5, "ran": 6, "done": 7}

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

    return show(options.question, node_timeout_s=node_timeout_s(options), documents=options.document)


async def nodes(options: Options, remote: Remote) -> int:
    found = await remote.nodes()
    pairs = await remote.pairs() if options.verbose else ()
    if options.json:
        nodes = [dataclasses.asdict(node) for node in found]
        ways = [{name: getattr(pair, name) for name in pair.__struct_fields__} for pair in pairs]
        _print_json({"nodes": nodes, "pairs": ways} if options.verbose else nodes)
        return OK
    health = HealthConfig.from_node_timeout(await remote.node_timeout_s()) if options.verbose else None
    header = ("name", "state", "engine", "adapter", "memory", "GFLOP/s", "GB/s", "version", "address")
    rows = []
    for node in found:
        for place, device in enumerate(node.devices):
            first = (node.name, node.state) if place == 0 else ("", "")
            last = (node.version, node.address) if place == 0 else ("", "")
            adapter = device.adapter + (" (software)" if device.software and device.engine != "cpu" else "")
            adapter += " (given up)" if device.given_up else ""
            speed = (speed_text(device.gflops), f"{device.gbytes_per_s:.1f}")
            seen = (f"{node.silent_s:.2f} s ago" if place == 0 else "",) if health else ()
            rows.append((*first, device.engine, adapter, size_text(device.memory_bytes), *speed, *last, *seen))
    print_table((*header, "last seen") if health else header, rows)
    if health:
        print(health.describe())
        for node in found:  # where each worker may be dialled, and who reaches whom
            print(f"{node.name} may be dialled at {' and '.join(node.addresses) or 'no address'}")
        print_pairs(pairs)
    return OK


async def plan(options: Options, remote: Remote) -> int:
    graph, unknown = read_graph(options.graph, options.input, options.dim)
    if unknown and not options.quiet:
        flags = " ".join(f"--dim {dim}=SIZE" for dim in unknown)
        print(f"planned for {' and '.join(f'{dim} = 1' for dim in unknown)}; {flags} says otherwise", file=sys.stderr)
    preview = PlanPreview(await remote.plan(graph, _strategy(options), options.copies, options.what_if_dies))
    if options.svg:
        write_text(Path(options.svg), preview.svg())
    print(json.dumps(preview.data) if options.json else preview)
    return OK


async def submit(options: Options, remote: Remote) -> int:
    program = read_program(options.graph, options.input, options.dim)
    graph, inputs, params = program.graph, program.inputs, program.params
    check_folder(Path(options.output or "."))
    size_bytes = sum(array.nbytes for array in (*inputs.values(), *params.values(), *graph.blobs.values()))
    how = {"strategy": _strategy(options), "detach": options.detach, "copies": options.copies}
    sending = asyncio.ensure_future(remote.submit(graph, inputs, params, **how))
    await _show_sent(options, remote, sending, size_bytes)
    job = await sending
    if options.detach:
        where = f" --output {options.output}" if options.output else ""
        _say(options, {"job": job}, f"job {job}; ask with: mesh-coord result {job}{where}")
        (report,) = await remote.jobs(job)
        if report.waits and not options.quiet:
            print(f"job {job} waits {report.waits}", file=sys.stderr)
        return OK
    try:
        return await _save_result(options, remote, job)
    except asyncio.CancelledError:
        await remote.cancel(job)
        raise


async def status(options: Options, remote: Remote) -> int:
    jobs = await remote.jobs(options.job or "")
    if options.json:
        _print_json([_job_fields(job) for job in jobs])
        return OK
    rows = [(job.job, job.name, job.state, f"{job.seconds:.2f} s", _why(job)) for job in jobs]
    print_table(("job", "name", "state", "time", "why"), rows)
    return OK


async def logs(options: Options, remote: Remote) -> int:
    (job,) = await remote.jobs(options.job)
    error = from_fields(job.error)
    data = {"job": job.job, "log": job.log, "error_log": error.log_lines}
    _say(options, data, "\n".join(map(_log_line, job.log)))
    if not options.json:
        print_log(error)
    return OK


async def result(options: Options, remote: Remote) -> int:
    check_folder(Path(options.output or "."))
    return await _save_result(options, remote, options.job)


async def cancel(options: Options, remote: Remote) -> int:
    await remote.cancel(options.job)
    _say(options, {"job": options.job, "state": "cancelled"}, f"job {options.job} is cancelled")
    return OK


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
    waits = f"how long the ranks of a program wait for each other (default {COLLECTIVE_TIMEOUT_S:g})"
    made.add_argument("--collective-timeout", type=float, default=COLLECTIVE_TIMEOUT_S, metavar="S", help=waits)
    made.add_argument("--keep-results", default="24h", metavar="TIME", help="how long jobs are kept once over")
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


def _doctor_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("--coordinator", metavar="HOST:PORT", help="default MESH_ADDRESS, else this machine's")


@dataclass(frozen=True, slots=True)
class Verb:
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    local: Callable[[Options], int] | None = None
    remote: Ask | None = None
    interrupted: int = INTERRUPTED


VERBS: dict[str, Verb] = {
    "serve": Verb("run a coordinator on this machine", _serve_arguments, local=serve, interrupted=OK),
    "nodes": Verb("show the workers and their devices, pause one, or throw one out", nodes_arguments, remote=nodes),
    "token": Verb("make, list and withdraw join tokens", token_arguments),
    "authority": Verb("show the mesh's authority, or replace it", authority_arguments),
    "join": Verb("become a client of a mesh elsewhere, with a token", join_arguments, local=join),
    "topology": Verb("show workers, devices and the links between them", topology_arguments, remote=topology),
    "plan": Verb("show what would go where, before a byte moves", _plan_arguments, remote=plan),
    "submit": Verb("run a graph", _submit_arguments, remote=submit),
    "status": Verb("show jobs", _status_arguments, remote=status),
    "logs": Verb("show what happened to a job", _job_argument, remote=logs),
    "result": Verb("wait for a job and write its outputs", _result_arguments, remote=result),
    "cancel": Verb("stop a job", _job_argument, remote=cancel),
    "launch": Verb("run a script as several ranks", launch_arguments, local=launch, interrupted=INTERRUPTED),
    "doctor": Verb("tell what is wrong with the mesh and what to do about it", _doctor_arguments, local=doctor),
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
            one.add_argument("--coordinator", metavar="HOST:PORT", help="default MESH_ADDRESS, else this machine's")
        one.set_defaults(interrupted=verb.interrupted)
        run = verb.local or (on_a_coordinator(verb.remote) if verb.remote else None)
        if run is not None:  # a verb of several actions has a function for each
            one.set_defaults(run=run)
    return made


# -- helpers ----------------------------------------------------------------------------------------------


def _strategy(options: Options) -> str:
    """The text of what was asked for; ConfigError for a strategy that does not choose how many workers there are."""
    if options.use_all and options.strategy != Auto.word:
        raise ConfigError(f"--use-all and --strategy {options.strategy}", next_step="Leave out one of them")
    return text_of(Auto(options.use_all) if options.use_all else options.strategy, options.reproducible)


async def _show_sent(options: Options, remote: Remote, sending: asyncio.Future[str], size_bytes: int) -> None:
    """Tell how much of a job's values the coordinator has taken, until it has all."""
    if size_bytes < SHOWN_BYTES_MIN:
        return
    with progress("sending", size_bytes, not options.quiet) as advance:
        advance(0, f"sending {size_text(size_bytes)}")
        while not (await asyncio.wait([sending], timeout=POLL_S))[0]:
            advance(remote.bytes_sent, "")


async def _follow(options: Options, remote: Remote, job: str) -> None:
    """Tell a job's log while it grows, until the job is over."""
    shown, stage = 0, 0
    with progress(f"job {job}", max(STAGES.values()), not options.quiet) as advance:
        while True:
            (report,) = await remote.jobs(job)
            for line in report.log[shown:]:
                text = line.partition(" ")[2]
                stage = max(stage, STAGES.get(text.partition(" ")[0].rstrip(":"), 0))
                advance(stage, f"{job} {text}")
            shown = len(report.log)
            if report.state in OVER:
                return
            await asyncio.sleep(POLL_S)


async def _save_result(options: Options, remote: Remote, job: str) -> int:
    await _follow(options, remote, job)
    try:
        outputs, report = await remote.result(job)
    except MeshError as error:
        error.message = f"job {job}: {error.message}"
        raise
    files = write_outputs(Path(options.output or job), outputs)
    lines = [f"{name}: {array.dtype}{list(array.shape)} in {files[name]}" for name, array in outputs.items()]
    saved = {name: str(file) for name, file in files.items()}
    _say(options, {"job": job, "outputs": saved, "report": report}, "\n".join(lines))
    return OK


def _why(job: JobReport) -> str:
    """What keeps a job from its end, or made it fail."""
    return f"waits {job.waits}" if job.waits else job.error.get("message", "")


def _log_line(line: str) -> str:
    """A line of a job's log, its Unix time as a clock shows it."""
    at_s, _, text = line.partition(" ")
    return f"{datetime.fromtimestamp(float(at_s)):%H:%M:%S.%f} {text}"


def _job_fields(job: JobReport) -> dict[str, Any]:
    fields = {name: getattr(job, name) for name in JobReport.__struct_fields__}
    return {
        **fields,
        "report": told(job.report or "{}"),
        "error": str(from_fields(job.error)) if job.error else "",
    }


def _say(options: Options, data: Any, text: str) -> None:
    if options.json:
        _print_json(data)
    elif text:
        print(text)


def _print_json(data: Any) -> None:
    print(json.dumps(data, default=str))


if __name__ == "__main__":
    main()
