"""`mesh-coord serve`: a coordinator as a daemon, with its workers and its clients."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.authority.authority import Authority
from coordinator.authority.authority_service import AuthorityService
from coordinator.coordinator import Coordinator, CoordinatorConfig
from coordinator.jobs.job_service import JobService
from coordinator.jobs.job_store import JobStore
from coordinator.jobs.job_table import JobLimits, JobTable
from coordinator.jobs.session_service import SESSION_ENTRIES, SessionService
from coordinator.standby.following import Following
from coordinator.standby.replication import Replication
from coordinator.standby.shell import StandbyShell
from coordinator.workers.log_lines import LogLines
from wire.addresses import LAST_PORT, PORT, parse_address
from wire.bounds import JOBS_RUNNING
from wire.errors import ConfigError, ConnectFailed, NodeLost
from wire.joining.credentials import keep_renewed
from wire.joining.join_port import join_port_of
from wire.joining.join_protocol import Admitted
from wire.joining.join_tokens import Token
from wire.link.address_updates import AddressUpdates
from wire.link.endpoint import Endpoint as AnyEndpoint
from wire.link.identity import identity_here
from wire.link.interfaces import advertised, interfaces_here, judge, usable
from wire.link.link import Handler
from wire.link.membership import COORDINATOR_FILE, remember_coordinator
from wire.link.websocket_carrier import Endpoint
from wire.protocol.reports import Event
from wire.standby.standby_file import STANDBY_FILE, StandbyFile
from wire.system.file_lock import behind_lock
from wire.system.loop_lag import measure
from wire.system.signals import watch_signals
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks, as_error
from wire.timeouts import COORDINATOR, Timeouts

from ..backends.admission import FIRST_TOKEN_S, FIRST_TOKEN_USES, Admission
from ..backends.config import coordinator_folder
from ..backends.embedded import start_coordinator
from ..backends.enrolment import authority_folder
from ..util.units import check_fraction, parse_duration, parse_size
from .exit_codes import OK, REPLACED
from .flags import mesh_name, node_name, timeouts
from .output import say, say_lines

if TYPE_CHECKING:
    from wire.discovery.mdns import Announcer

    from ..backends.auto_join import AutoJoin

log = steady_logger("graph_mesh.serve")

RETURN_WAITS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # between attempts to reach a worker of before


async def serve_until_stopped(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; 0.  A second one ends the process."""
    mesh = mesh_name(options)
    peers = [parse_address(peer) for peer in options.peer]
    join_port_of(options.port or PORT)  # of a standby, too, which listens when it takes over
    if options.standby:
        parse_address(options.standby)  # which is dialled again and again, and never answers where it is no address
    times = timeouts(options, COORDINATOR)
    audit = check_fraction("--audit", options.audit)
    audit_untrusted = check_fraction("--audit-untrusted", options.audit_untrusted)
    name = node_name(options) or "coordinator"
    config = CoordinatorConfig(
        mesh,
        name,
        times,
        audit=audit,
        audit_untrusted=audit_untrusted,
        plan_ahead=options.plan_ahead,
        reproducible=options.reproducible,
    )
    limits = _job_limits(options, times)
    folder = coordinator_folder(mesh, config.name, options.state_dir)
    stopped = asyncio.Event()
    watch_signals(asyncio.get_running_loop(), lambda why: stopped.set())
    measure(asyncio.get_running_loop()).tell()
    shell: StandbyShell | None = None
    if options.standby or (folder / STANDBY_FILE).exists():
        shell = await _until_it_serves(options, config, folder, stopped)
        if shell is None:
            return OK
    epoch_min = max(time.time_ns() // 1000, 1 + max(shell.file.remembered.epochs, default=0) if shell else 0)
    store, entries = await asyncio.to_thread(JobStore.open, folder / "jobs", epoch_min)
    authority_at = authority_folder(mesh, options.state_dir)
    authority = await asyncio.to_thread(Authority, authority_at, mesh, epoch=store.epoch)
    admission = await asyncio.to_thread(Admission, authority, folder / "identity")
    coordinator = await start_coordinator(config, admission.credentials)
    coordinator.epoch = store.epoch
    service = JobService(coordinator, JobTable(limits), store, acted=admission.acted)
    sessions = SessionService(coordinator, service.contents, store, acted=admission.acted)
    coordinator.requests.update(AuthorityService(authority).answers)
    coordinator.watchers.append(partial(_log_event, LogLines(), coordinator))
    service.contents.keep(store.find)
    file = shell.file if shell else StandbyFile(folder)
    replication = Replication(coordinator, store, file, authority_at, options.arbiter, _over)
    dialled: list[asyncio.Task[None]] = []
    try:
        if shell is not None:
            await replication.go_on(shell)
        workers = service.resume(entry for entry in entries if entry.kind not in SESSION_ENTRIES)
        sessions.resume(entry for entry in entries if entry.kind in SESSION_ENTRIES)
        host = options.host or "::"
        port = await admission.listen(
            coordinator, host, range(PORT, LAST_PORT + 1) if options.port is None else [options.port]
        )
        mine = [f"127.0.0.1:{port}", *coordinator.endpoint.identity.addresses]
        await asyncio.to_thread(remember_coordinator, folder, mine)
        whereabouts = AddressUpdates(coordinator.endpoint, host, port, options.interface, options.advertise)
        coordinator.link_watch.moved = whereabouts.moved
        admission.begin(coordinator)
        # A log that is kept, or a service's journal, is no place for a token.
        token = None if options.quiet else await asyncio.to_thread(admission.first_token)
        _tell_ready(options, coordinator, port, token)
        dialled.append(asyncio.create_task(_dial_again(coordinator, workers)))
        for peer in await _silent(coordinator, peers):
            waits_s = chain(RETURN_WAITS_S, repeat(RETURN_WAITS_S[-1]))
            dialled.append(asyncio.create_task(_until_it_answers(partial(coordinator.connect, *peer), waits_s)))
        if options.no_mdns:
            await stopped.wait()
        else:
            from wire.discovery.mdns import Announcer

            from ..backends.auto_join import AutoJoin

            key = admission.discovery_keys
            announcer = Announcer(coordinator.identity, port, key, host, options.interface)
            join = AutoJoin(coordinator, key, options.interface, admission.imposter)
            await _announced(announcer, join, stopped)
    finally:
        for task in dialled:
            task.cancel()
        async with contextlib.AsyncExitStack() as closing:  # from the last one on, whatever one of them raises
            closing.push_async_callback(lambda: coordinator.close(returns=sessions.left))
            closing.push_async_callback(service.close)
            closing.callback(replication.close)
            closing.push_async_callback(sessions.leave)
            closing.push_async_callback(admission.close)
            closing.callback((folder / COORDINATOR_FILE).unlink, missing_ok=True)
    return OK


def _job_limits(options: argparse.Namespace, times: Timeouts) -> JobLimits:
    """What clients may have of jobs, and for how long; ConfigError for a number that cannot be."""
    for flag, number in (("--client-jobs", options.client_jobs), ("--client-waiting", options.client_waiting)):
        if number < 1:
            raise ConfigError(f"{flag} {number}: a client may have at least one job")
    return JobLimits(
        running_max=max(JOBS_RUNNING.most, options.client_jobs),
        running_per_client_max=options.client_jobs,
        queued_per_client_max=options.client_waiting,
        queued_bytes_per_client_max=parse_size(options.client_bytes),
        time_limit_s=parse_duration(options.job_time_limit, none="0"),
        keep_s=times.keep_results_s,
        grace_s=times.job_grace_s,
        gather_s=times.job_gather_s,
    )


async def _until_it_serves(
    options: argparse.Namespace, config: CoordinatorConfig, folder: Path, stopped: asyncio.Event
) -> StandbyShell | None:
    """Follow the coordinator that serves until this one does; None if it is stopped before."""
    authority_at = authority_folder(config.mesh, options.state_dir)
    if not (authority_at / "members.json").exists():
        raise ConfigError(
            f"a standby needs the authority of mesh {config.mesh}, and {authority_at} is not there",
            next_step="Copy that folder from the coordinator's machine; from then on changes come by themselves",
        )
    authority = await asyncio.to_thread(Authority, authority_at, config.mesh)
    admission = await asyncio.to_thread(Admission, authority, folder / "identity")
    (folder / COORDINATOR_FILE).unlink(missing_ok=True)  # of a life that was killed
    credentials = admission.credentials
    identity = identity_here("coordinator", config.mesh, config.name, None, credentials.node_id)

    def addresses(endpoint: AnyEndpoint) -> tuple[str, ...]:
        usable_here = usable(judge(interfaces_here(), options.interface))
        port = PORT if options.port is None else options.port
        return advertised(endpoint.allowed, options.host or "::", port, usable_here, options.advertise)

    async def renew() -> Admitted:
        return await behind_lock(admission.certify)

    def endpoint(handler: Handler) -> AnyEndpoint:
        return Endpoint(identity, handler, credentials=credentials, timeouts=config.timeouts)

    first = [options.standby] if options.standby else []
    following = Following(endpoint, folder, authority_at, first, addresses, not options.standby, _over)
    log.info("mesh-coord %s of mesh %s follows %s", config.name, config.mesh, options.standby or "whoever serves")
    if options.json:
        say(json.dumps({"event": "following", "mesh": config.mesh, "pid": os.getpid()}), flush=True)
    lasting = Tasks()
    renewing = lasting.keep(
        "renewing the certificate", partial(keep_renewed, credentials, renew, timeouts=config.timeouts)
    )
    running, stopping = asyncio.create_task(following.run()), asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        return running.result() if running.done() else None
    finally:
        for task in (running, stopping, renewing):
            task.cancel()
        await asyncio.gather(running, stopping, renewing, return_exceptions=True)
        await admission.close()


def _over(why: str) -> None:
    """End at once: an end in good order would drop what the coordinator that took over goes on with."""
    log.error("this coordinator ends at once: %s; start it again, and it follows whoever serves", why)
    logging.shutdown()
    os._exit(REPLACED)


def _log_event(log_lines: LogLines, coordinator: Coordinator, event: Event) -> None:
    for level, line in log_lines.lines(event, coordinator.idle):
        log.log(level, "%s", line)


async def _dial_again(coordinator: Coordinator, workers: Mapping[str, Sequence[str]]) -> None:
    """Dial the workers of before a restart: some dial us or announce themselves, but this is quicker."""

    async def dial(node_id: str, addresses: Sequence[str]) -> None:
        link = await coordinator.endpoint.reach(addresses, node_id)
        await coordinator.adopt(link, *parse_address(addresses[0]))

    known = [(node_id, addresses) for node_id, addresses in workers.items() if addresses]
    await asyncio.gather(*(_until_it_answers(partial(dial, *each), (0.0, *RETURN_WAITS_S[:-1])) for each in known))


async def _silent(coordinator: Coordinator, peers: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Connect to the workers of --peer; those that do not answer.  MeshError if one refuses."""
    outcomes = await asyncio.gather(*(coordinator.connect(*peer) for peer in peers), return_exceptions=True)
    silent = []
    for peer, outcome in zip(peers, outcomes, strict=True):
        if isinstance(outcome, (ConnectFailed, NodeLost, ConfigError)):  # ConfigError: no resolver knows the name now
            log.warning("this worker is dialled again until it answers: %s", outcome)
            silent.append(peer)
        elif isinstance(outcome, BaseException):
            raise outcome
    return silent


async def _until_it_answers(dial: Callable[[], Awaitable[object]], waits_s: Iterable[float]) -> None:
    """Dial a worker after each wait, until it answers."""
    for wait_s in waits_s:
        await asyncio.sleep(wait_s)
        try:
            await dial()
            return
        except Exception as fault:  # whatever it is: nobody else would dial it
            log.debug("a worker is not back yet: %s", as_error("dialling a worker failed", fault))


async def _announced(announcer: Announcer, join: AutoJoin, stopped: asyncio.Event) -> None:
    async with announcer:
        await join.start()
        try:
            await stopped.wait()
        finally:
            await join.close()


def _tell_ready(options: argparse.Namespace, coordinator: Coordinator, port: int, token: Token | None) -> None:
    mesh = coordinator.config.mesh
    address = next(iter(coordinator.endpoint.identity.addresses), f"127.0.0.1:{port}")
    if options.json:
        ready = {"event": "ready", "mesh": mesh, "address": address, "port": port, "pid": os.getpid()}
        say(json.dumps(ready | ({"token": token.text} if token else {})), flush=True)
    log.info("mesh-coord %s of mesh %s ready on %s", options.name, mesh, address)
    log.info("%s", coordinator.config.health.describe())
    log.info("lend this machine's devices: mesh-worker; submit: mesh-coord submit GRAPH.wire --output DIR")
    if token is None:
        log.info("let another machine in: mesh-coord token create here, then mesh-worker join there")
    elif not options.json:  # on stdout and never in a log, where it would be a key under the mat
        say_lines(
            f"On each other machine type\n\n    mesh-worker join\n\nand paste this token, good for "
            f"{FIRST_TOKEN_USES} machines and {FIRST_TOKEN_S / 3600:g} h:\n\n    {token.text}\n"
        )
