"""Verbs of mesh-coord that ask a coordinator.  This file is imported when one of them runs (`coord.py`)."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.workers.failure_detector import HealthConfig
from wire.errors import ConfigError, MeshError, from_fields
from wire.limits import MIB
from wire.policy.strategies import Auto, text_of
from wire.protocol.engine_names import ON_CPU
from wire.protocol.missing_gpu import long_text, short_text

from ..util.units import size_text, speed_text, time_text
from .exit_codes import OK, print_log
from .output import say, say_lines
from .progress import progress
from .tables import pair_fields, print_pairs, print_table

if TYPE_CHECKING:
    from wire.protocol.messages import JobReport

    from ..backends.remote import Remote
    from ..core.node import Node

POLL_S = 0.1
WATCH_S = 0.1  # a worker is suspect for half a second at least, by default
SHOWN_BYTES_MIN = 8 * MIB  # sending less takes no time worth telling
OVER = ("done", "failed", "cancelled")
# How far a job is when its log says so, by the first word of a line.
STAGES = {"submitted": 0, "queued": 1, "running": 2, "planned": 3, "deployed": 4, "began": 5, "ran": 6, "done": 7}

Options = argparse.Namespace


async def nodes(options: Options, remote: Remote) -> int:
    """Show the workers as they are now, and with --watch every change of their state from then on."""
    workers = await remote.nodes()
    await _show_nodes(options, remote, workers)
    with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C is how a watch ends
        while options.watch:
            await asyncio.sleep(WATCH_S)
            before, workers = workers, await remote.nodes()
            _show_changes(options, before, workers)
    return OK


def _show_changes(options: Options, before: Sequence[Node], after: Sequence[Node]) -> None:
    """Print a line for each worker whose state has changed."""
    states = {node.id: node.state for node in before}
    for node in after:
        was = states.get(node.id, "not there")
        if node.state != was:
            at = datetime.now().astimezone().isoformat(timespec="milliseconds")
            change = {"time": at, "name": node.name, "was": was, "state": node.state}
            _say(options, change, f"{at[11:23]} {node.name}: {was} -> {node.state}")
            sys.stdout.flush()


async def _show_nodes(options: Options, remote: Remote, workers: Sequence[Node]) -> None:
    census = await remote.census(pairs=options.verbose)
    pairs = census.pairs
    if options.json:
        nodes = [dataclasses.asdict(node) for node in workers]
        _print_json({"nodes": nodes, "pairs": [pair_fields(pair) for pair in pairs]} if options.verbose else nodes)
        sys.stdout.flush()
        return
    health = HealthConfig.from_node_timeout(census.node_timeout_s) if options.verbose else None
    header = ("name", "state", "engine", "adapter", "memory", "GFLOP/s", "GB/s", "version", "address")
    rows = []
    for node in workers:
        for place, device in enumerate(node.devices):
            first = (node.name, node.state) if place == 0 else ("", "")
            last = (node.version, node.address) if place == 0 else ("", "")
            adapter = device.adapter + (" (software)" if device.software and device.engine not in ON_CPU else "")
            adapter += " (given up)" if device.given_up else ""
            adapter += f" (no GPU: {short_text(node.without_gpu)})" if node.without_gpu and place == 0 else ""
            speed = (speed_text(device.gflops), f"{device.gbytes_per_s:.1f}")
            late = (f"{node.silent_s:.2f} s ago", time_text(node.loop_lag_s)) if place == 0 else ("", "")
            seen = late if health else ()
            rows.append((*first, device.engine, adapter, size_text(device.memory_bytes), *speed, *last, *seen))
    print_table((*header, "last seen", "longest stop") if health else header, rows)
    _say_if_none(options, workers, "no worker is here yet. Start one with: mesh-worker")
    if health:
        say(health.describe())
        say(f"the coordinator's event loop stood still for at most {time_text(census.loop_lag_s)} of late")
        for node in workers:  # where each worker may be dialled, and who reaches whom
            say(f"{node.name} may be dialled at {' and '.join(node.addresses) or 'no address'}")
        for node in workers:
            if node.without_gpu:
                say(f"{node.name} computes on its processor: it {long_text(node.without_gpu)}")
        for node in workers:
            say(f"sandbox of {node.name}'s engine hosts: {node.sandbox or 'none, as its version is older'}")
        print_pairs(pairs)
    sys.stdout.flush()


async def plan(options: Options, remote: Remote) -> int:
    from ..client.plan_preview import PlanPreview
    from .arrays import write_text
    from .graph_argument import read_graph

    graph, unknown = read_graph(options.graph, options.input, options.dim)
    if unknown and not options.quiet:
        flags = " ".join(f"--dim {dim}=SIZE" for dim in unknown)
        say(f"planned for {' and '.join(f'{dim} = 1' for dim in unknown)}; {flags} says otherwise", file=sys.stderr)
    preview = PlanPreview(await remote.plan(graph, _strategy(options), options.copies, options.what_if_dies))
    if options.svg:
        write_text(Path(options.svg), preview.svg())
    say_lines(json.dumps(preview.data) if options.json else preview)
    return OK


async def submit(options: Options, remote: Remote) -> int:
    from .arrays import check_folder
    from .graph_argument import read_program

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
            say(f"job {job} waits {report.waits}", file=sys.stderr)
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
    _say_if_none(options, jobs, "there are no jobs. Submit one with: mesh-coord submit GRAPH")
    return OK


async def sessions(options: Options, remote: Remote) -> int:
    """Show the sessions that have a name, of this user on this machine."""
    found = await remote.named_sessions()
    if options.json:
        fields = found[0].__struct_fields__ if found else ()
        _print_json([{name: getattr(session, name) for name in fields} for session in found])
        return OK
    rows = [
        (
            session.name,
            f"{session.steps}" if session.found else f"{session.steps} or more",
            ", ".join(session.workers),
            f"{session.client}" if session.attached else "nobody",
            str(timedelta(seconds=round(session.age_s))),
            size_text(session.size_bytes),
        )
        for session in found
    ]
    print_table(("name", "steps", "workers", "driven by", "age", "state"), rows)
    _say_if_none(options, found, "no session has a name. Begin one in Python with: m.session(..., name=NAME)")
    return OK


def _say_if_none(options: Options, rows: Sequence[object], text: str) -> None:
    if not rows and not options.quiet:
        say(text, file=sys.stderr)


async def logs(options: Options, remote: Remote) -> int:
    (job,) = await remote.jobs(options.job)
    error = from_fields(job.error)
    data = {"job": job.job, "log": job.log, "error_log": error.log_lines}
    _say(options, data, *map(_log_line, job.log))
    if not options.json:
        print_log(error)
    return OK


async def result(options: Options, remote: Remote) -> int:
    from .arrays import check_folder

    check_folder(Path(options.output or "."))
    return await _save_result(options, remote, options.job)


async def cancel(options: Options, remote: Remote) -> int:
    await remote.cancel(options.job)
    _say(options, {"job": options.job, "state": "cancelled"}, f"job {options.job} is cancelled")
    return OK


# -- helpers ----------------------------------------------------------------------------------------------


def _strategy(options: Options) -> str:
    """The strategy's text; ConfigError for one that does not choose the number of workers."""
    if options.use_all and options.strategy != Auto.word:
        raise ConfigError(f"--use-all and --strategy {options.strategy}", next_step="Leave out one of them")
    return text_of(Auto(options.use_all) if options.use_all else options.strategy, options.reproducible)


async def _show_sent(options: Options, remote: Remote, sending: asyncio.Future[str], size_bytes: int) -> None:
    """Show how much of a job's values the coordinator has received, until it has all."""
    if size_bytes < SHOWN_BYTES_MIN:
        return
    with progress("sending", size_bytes, not options.quiet) as advance:
        advance(0, f"sending {size_text(size_bytes)}")
        while not (await asyncio.wait([sending], timeout=POLL_S))[0]:
            advance(remote.bytes_sent, "")


async def _follow(options: Options, remote: Remote, job: str) -> None:
    """Print a job's log while it grows, until the job is over."""
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
    from .arrays import write_outputs

    await _follow(options, remote, job)
    try:
        outputs, report = await remote.result(job)
    except MeshError as error:
        error.message = f"job {job}: {error.message}"
        raise
    files = write_outputs(Path(options.output or job), outputs)
    lines = [f"{name}: {array.dtype}{list(array.shape)} in {files[name]}" for name, array in outputs.items()]
    saved = {name: str(file) for name, file in files.items()}
    _say(options, {"job": job, "outputs": saved, "report": report}, *lines)
    return OK


def _why(job: JobReport) -> str:
    """What a job waits for, or why it failed."""
    return f"waits {job.waits}" if job.waits else job.error.get("message", "")


def _log_line(line: str) -> str:
    """A line of a job's log, its Unix time as a clock shows it."""
    at_s, _, text = line.partition(" ")
    return f"{datetime.fromtimestamp(float(at_s)).time().isoformat(timespec='milliseconds')} {text}"


def _job_fields(job: JobReport) -> dict[str, Any]:
    from ..backends.remote import parse_json

    fields = {name: getattr(job, name) for name in job.__struct_fields__}
    return {
        **fields,
        "report": parse_json(job.report or "{}"),
        "error": str(from_fields(job.error)) if job.error else "",
    }


def _say(options: Options, data: Any, *lines: str) -> None:
    if options.json:
        _print_json(data)
        return
    for line in lines:
        say(line)


def _print_json(data: Any) -> None:
    say(json.dumps(data, default=str))
