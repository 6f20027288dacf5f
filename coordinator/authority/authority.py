"""The authority of a mesh in its folder: tokens, members, certificates and revocations, each on disk before it counts.

Every change locks the folder, reads the list of members, changes it and writes it again.  So the coordinator and the
commands `token` and `nodes revoke` in other processes may all do so at any time: who may write the folder may decide.
Nothing is kept in memory but keys.  What to decide is in `member_roster.py` and `token_table.py`, the keys are in
`keyring.py`.

A mesh may get a new authority: from then on that certifies, and by its word the one before is trusted for another day.
Only the coordinator still shows a certificate of the one before until that day is over, since not all members know the
new one yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wire.addresses import check_name
from wire.errors import ConfigError, MeshError, ProtocolError
from wire.joining.join_protocol import Admitted, Former, Grant, JoinRequested, Refusal, prove_grant
from wire.joining.join_tokens import KEY_ID_BYTES, SECRET_BYTES, Token, new_token, pin_of
from wire.roles import ADMIN
from wire.security.certificates import (
    CERTIFICATE_S,
    PublicKey,
    certificate_pem,
    key_of_certificate,
    key_of_request,
)
from wire.system.atomic_files import Disk
from wire.system.file_lock import FileLock, behind_lock
from wire.system.private_folder import private_folder
from wire.system.steady_log import steady_logger

from .audit_log import AuditLog
from .keyring import Keyring
from .member_roster import MemberRecord, Roster, from_json, to_json
from .refusal_log import RefusalLog
from .token_table import TTL_S, TokenRecord, TokenTable

log = steady_logger("graph_mesh.authority")

WATCH_S = 0.2  # how often the list of members is looked at: a revocation works within a second
OVERLAP_S = CERTIFICATE_S  # how long the authority before is trusted: every member renews within that
OVERLAP_S_MAX = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Trust:
    """The nodes and authorities that members trust: `data` is the revocation list, `node_ids` the nodes on it.

    `pins` are those of the authority and of the one before, if that is trusted too; `certified` are the members that
    have a certificate of the present one.
    """

    number: int
    data: bytes
    node_ids: frozenset[str]
    authority: bytes
    former: Former | None
    pins: tuple[bytes, ...]
    certified: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rotation:
    """The authorities of a mesh: until when the former one is trusted, and which members have no new certificate yet.

    `name` is how the audit log calls the present one.
    """

    name: str
    number: int
    former_until_s: float  # 0: there is none
    behind: tuple[MemberRecord, ...]
    withdrawn: tuple[TokenRecord, ...] = ()


class Authority:
    """Opens the authority of `mesh` in `folder`, or makes one; ConfigError if what is there cannot be used.

    `epoch` is the coordinator's, sent to nodes that join.  Methods block for a few disk writes, and for the lock: call
    them by `behind_lock`.
    """

    def __init__(
        self,
        folder: Path,
        mesh: str,
        clock: Callable[[], float] = time.time,
        disk: Disk | None = None,
        epoch: int = 0,
    ) -> None:
        self.mesh = mesh
        self.epoch = epoch
        self._folder = folder
        self._clock = clock
        self._disk = disk or Disk()
        self._audit = AuditLog(folder, self._disk)
        self._refusals = RefusalLog()
        self._counting = threading.Lock()  # callers are answered in threads
        self._keyring = Keyring(folder, self._disk)
        self._seen: tuple[tuple[int, int, int], Roster] | None = None
        self._dummy_key = secrets.token_bytes(32)
        self._members = folder / "members.json"
        try:
            private_folder(folder)
            with FileLock(folder / "lock"):
                owner = self._open().mesh
        except OSError as error:
            raise ConfigError(f"cannot use the folder {folder}", cause=str(error)) from None
        if owner != mesh:
            raise ConfigError(f"{folder} belongs to mesh {owner}, not {mesh}", next_step="Check --mesh and --state-dir")

    @property
    def certificate(self) -> bytes:
        return self._keyring.get(self._latest().authority).certificate

    # -- tokens

    def create_token(
        self, role: str = "worker", uses: int = 1, ttl_s: float = TTL_S, untrusted: bool = False, by: str = ""
    ) -> Token:
        """A new token; only its text, which is nowhere kept, lets a node in.  `by` is who asks for it, where that is
        not this machine's user."""
        with self._changing() as roster:
            certificate = self._keyring.get(roster.authority).certificate
            token = new_token(certificate, secrets.token_bytes(KEY_ID_BYTES), secrets.token_bytes(SECRET_BYTES))
            roster.tokens.create(token, role, uses, ttl_s, self._clock(), untrusted)
            self._write(roster)
            trust = "untrusted" if untrusted else ""
            self._tell(
                "token created", token=token.key_id, role=role, uses=str(uses), ttl_s=f"{ttl_s:g}", trust=trust, by=by
            )
        return token

    def tokens(self) -> list[TokenRecord]:
        return self._read().tokens.records

    def revoke_token(self, key_id: str, by: str = "") -> TokenRecord:
        """The token lets nobody in any more; the nodes that it let in stay."""
        with self._changing() as roster:
            record = roster.tokens.withdraw(key_id)
            self._write(roster)
            self._tell("token revoked", token=key_id, by=by)
        return record

    # -- members

    def members(self) -> list[MemberRecord]:
        return list(self._read().members.values())

    def member(self, node_id: str) -> MemberRecord | None:
        """What is known of a member."""
        return self._latest().members.get(node_id)

    def revoke_node(self, who: str, by: str = "", role: str = ADMIN) -> MemberRecord:
        """Throw out a node, by name, id or the start of that: its handshakes fail from the next look at the list on.

        `by` is who asks for it, and their role, where that is not this machine's user.
        """
        with self._changing() as roster:
            member, withdrawn = roster.revoke(who, self._clock(), role)
            self._write(roster)
            self._tell("node revoked", node=member.node_id, name=member.name, by=by)
            for record in withdrawn:
                self._tell("token revoked", token=record.key_id, reason=f"{member.name} knows it")
        return member

    def trust(self) -> Trust:
        """The nodes and authorities to trust now."""
        return self._trust(self._read())

    async def watch(self) -> AsyncIterator[Trust]:
        """Yield the trust of now, and again after each change by time or by any process, without end."""
        last: object = None
        while True:
            try:
                roster = await asyncio.to_thread(self._latest)
                if roster.former_until_s and not roster.former(self._clock()):
                    await behind_lock(self._settle)
                    continue
                now = (roster.number, roster.authority, roster.former_until_s)
                if now != last:
                    trust = await asyncio.to_thread(self._trust, roster)
                    last = now
                    yield trust
            except (OSError, MeshError) as error:
                log.error("cannot read the list of members: %s", error)
            await asyncio.sleep(WATCH_S)

    # -- a new authority

    def rotate(self, overlap_s: float = OVERLAP_S, by: str = "") -> Rotation:
        """Give the mesh a new authority; the one before is trusted for another `overlap_s`.

        Open tokens are withdrawn: they name the old one.  InputError while the last such change is not over.
        """
        if not 0 < overlap_s <= OVERLAP_S_MAX:
            raise ConfigError(f"an authority is trusted for at most {OVERLAP_S_MAX / 86400:g} more days")
        self._settle()
        with self._changing() as roster:
            now_s = self._clock()
            before = roster.authority
            withdrawn = roster.rotate(now_s, now_s + overlap_s)
            successor = self._keyring.succeed(before, self.mesh, now_s, now_s + overlap_s)
            self._tell("authority made", authority=_short(successor.certificate))
            self._write(roster)
            former = _short(self._keyring.get(before).certificate)
            now = _short(successor.certificate)
            self._tell("authority changed", authority=now, former=former, for_s=f"{overlap_s:g}", by=by)
            for record in withdrawn:
                self._tell("token revoked", token=record.key_id, reason="it names the authority before")
            return self._rotation(roster, tuple(withdrawn))

    def rotation(self) -> Rotation:
        """The authorities of the mesh."""
        self._settle()
        return self._rotation(self._read())

    # -- who is let in: the Admission of the join port

    def admit(self, request: JoinRequested, host: str) -> Grant | Refusal:
        """Answer a node with a token."""
        details = {"token": request.ask.key_name, "name": request.ask.name, "host": host}
        with self._answering(details):
            proof = self._latest().tokens.prove(request)
            if proof.record is None:  # strangers are many: without a lock
                return self._refuse("invalid", details, proof.why)
            with self._locked() as roster:
                answer = self._admit(roster, request, host, details)
            return answer if isinstance(answer, Grant) else self._refuse(answer[0], details, answer[1])
        return Refusal("failed")

    def renew(self, certificate: bytes, host: str) -> Grant | Refusal:
        """Answer a member who showed this certificate of ours, on a link or at the join port."""
        key = key_of_certificate(certificate)
        details = {"node": key.node_id, "host": host}
        with self._answering(details):
            with self._locked() as roster:
                member = roster.renew(key.node_id, self._clock() + CERTIFICATE_S)
                if not isinstance(member, str):
                    self._write(roster)
                    self._tell("renewed", name=member.name, role=member.role, **details)
                    return self._grant(key, member.role, roster)
            return self._refuse(member, details)
        return Refusal("failed")

    def turned_away(self, host: str, why: str) -> None:
        """Log a connection that was refused before it asked anything or linked."""
        unlogged_count = self._count_refusal("turned away", host, why)
        if unlogged_count is not None:
            log.warning("turned away a caller from %s: %s%s", host, why, _others(unlogged_count))
            self._note("turned away", host, why, unlogged_count)

    def distrusted(self, host: str, why: str) -> None:
        """Log a node that announced itself as one of this mesh and could not prove it."""
        unlogged_count = self._count_refusal("imposter", host, why)
        if unlogged_count is not None:
            self._note("imposter", host, why, unlogged_count)

    def acted(self, event: str, node_id: str, what: str, unlogged_count: int) -> None:
        """Log what a client did: submit, read, cancel, pause or resume; as far as the disk takes it."""
        member = self.member(node_id)
        self._write_down(
            event, client=node_id, name=member.name if member else "", what=what, untold=_number(unlogged_count)
        )

    def _note(self, event: str, host: str, why: str, unlogged_count: int) -> None:
        """Write down what a stranger did, as far as the disk takes it."""
        self._write_down(event, host=host, reason=why, untold=_number(unlogged_count))

    def _write_down(self, event: str, **fields: str) -> None:
        try:
            with self._locked():
                self._tell(event, **fields)
        except (OSError, MeshError) as error:
            log.error("the audit log cannot be written: %s", error)

    def certify_web(self, key: PublicKey, hosts: Sequence[str]) -> bytes:
        """A certificate for an HTTP server of this user with these names and addresses, as PEM; it makes nobody a
        member."""
        with self._changing() as roster:
            self._tell("web server certified", hosts=", ".join(hosts))
            return certificate_pem(self._keyring.get(roster.authority).issue_web(key, hosts, self._clock()))

    def certify_coordinator(self, key: PublicKey) -> Admitted:
        """A certificate for the coordinator itself, at its start and whenever it is due."""
        with self._changing() as roster:
            self._tell("coordinator certified", node=key.node_id)
            return self._admitted(key, "coordinator", roster)

    def admit_here(self, key: PublicKey, role: str, name: str) -> Admitted:
        """Let in a node of a user that may write this folder; ConfigError if it was revoked."""
        with self._changing() as roster:
            now_s = self._clock()
            if not roster.admit_here(key.node_id, role, check_name("node", name), now_s, now_s + CERTIFICATE_S):
                raise ConfigError(f"{name} was revoked", next_step="Remove its state folder to make it a new node")
            self._write(roster)
            self._tell("joined", role=role, name=name, node=key.node_id, host="this machine")
            return self._admitted(key, role, roster)

    # -- inside

    def _admit(
        self, roster: Roster, request: JoinRequested, host: str, details: dict[str, str]
    ) -> Grant | tuple[str, str]:
        """Let in a node with a token; or the reason why not, and the text of the log."""
        proof = roster.tokens.prove(request)
        if proof.record is None:
            return "invalid", proof.why
        try:
            check_name("node", request.ask.name)
            key = key_of_request(request.ask.request)
        except (ConfigError, ProtocolError) as error:
            return "malformed", error.message
        details["node"] = key.node_id
        now_s = self._clock()
        reason = roster.admit(proof.record, request, key.node_id, host, now_s, now_s + CERTIFICATE_S)
        if reason:
            return reason, ""
        self._write(roster)
        self._tell("joined", role=proof.record.role, **details)
        return prove_grant(self._grant(key, proof.record.role, roster), proof.record.key, request.ask.nonce)

    def _count_refusal(self, event: str, host: str, *what: str) -> int | None:
        with self._counting:
            return self._refusals.record(host, "|".join((event, *what)), self._clock())

    def _open(self) -> Roster:
        """Open the authority, or make it at the first start; the list of members is written last, once all else is."""
        if not self._members.exists():
            roster = Roster(self.mesh, TokenTable(self._dummy_key))
            self._keyring.make(roster.authority, self.mesh, self._clock())
            self._write(roster)
        roster = self._read()
        self._keyring.get(roster.authority)
        self._keyring.keep_only(_trusted(roster))
        return roster

    def _settle(self) -> None:
        """Drop the authority before once its time is over."""
        if not self._latest().former_until_s:
            return
        with self._changing() as roster:
            if roster.former_until_s and not roster.former(self._clock()):
                former = _short(self._keyring.get(roster.authority - 1).certificate)
                roster.former_until_s = 0.0
                self._write(roster)
                self._tell("authority dropped", authority=former)
                self._keyring.keep_only(_trusted(roster))

    def _admitted(self, key: PublicKey, role: str, roster: Roster) -> Admitted:
        trust = self._trust(roster)
        return Admitted(self._grant(key, role, roster), trust.authority, trust.former)

    def _grant(self, key: PublicKey, role: str, roster: Roster) -> Grant:
        now_s = self._clock()
        former = roster.former(now_s) if role == "coordinator" else 0
        certificate = self._keyring.get(former or roster.authority).issue(key, role, self.mesh, now_s)
        return Grant(certificate, self._trust(roster).data, self.mesh, self.epoch)

    def _trust(self, roster: Roster) -> Trust:
        now_s = self._clock()
        ours, before = self._keyring.get(roster.authority), roster.former(now_s)
        out = frozenset(roster.listed(now_s))
        pins, former = [pin_of(ours.certificate)], None
        if before:
            theirs = self._keyring.get(before)
            pins.append(pin_of(theirs.certificate))
            former = Former(self._keyring.vouched(roster.authority), theirs.revocations(out, roster.number))
        data = ours.revocations(out, roster.number)
        certified = frozenset(roster.certified())
        return Trust(roster.number, data, out, ours.certificate, former, tuple(pins), certified)

    def _rotation(self, roster: Roster, withdrawn: tuple[TokenRecord, ...] = ()) -> Rotation:
        certificate = self._keyring.get(roster.authority).certificate
        return Rotation(_short(certificate), roster.authority, roster.former_until_s, tuple(roster.behind()), withdrawn)

    def _refuse(self, reason: str, details: dict[str, str], why: str = "") -> Refusal:
        """Refuse a node, and log that; not to be called under the lock."""
        who = details.get("name") or details.get("node") or ""
        unlogged_count = self._count_refusal("refused", details["host"], why or reason, who, details.get("token", ""))
        if unlogged_count is not None:
            log.warning("refused %r from %s: %s%s", who, details["host"], why or reason, _others(unlogged_count))
            with self._locked():
                self._tell("refused", reason=why or reason, untold=_number(unlogged_count), **details)
        return Refusal(reason)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Roster]:
        """The list of members, locked, for a change; ConfigError where that cannot be written."""
        try:
            with self._locked() as roster:
                yield roster
        except OSError as error:
            raise ConfigError(f"cannot write in {self._folder}", cause=str(error)) from None

    @contextlib.contextmanager
    def _answering(self, details: dict[str, str]) -> Iterator[None]:
        """Log a failure within the block and end the block; the caller then answers that it failed."""
        try:
            yield
        except (OSError, MeshError) as error:
            log.error(
                "cannot answer %r from %s: %s", details.get("name") or details.get("node"), details["host"], error
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Roster]:
        with FileLock(self._folder / "lock"):
            yield self._read()

    def _latest(self) -> Roster:
        """The list of members to read, loaded again only where it has changed: strangers may connect often."""
        stamp = self._stamp()
        if self._seen is None or self._seen[0] != stamp:
            self._seen = stamp, self._read()
        return self._seen[1]

    def _read(self) -> Roster:
        return from_json(self._members.read_bytes(), self._dummy_key)

    def _write(self, roster: Roster) -> None:
        self._disk.write_whole(self._members, [to_json(roster)])

    def _stamp(self) -> tuple[int, int, int]:
        stat = self._members.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _tell(self, event: str, **fields: str) -> None:
        self._audit.append(event, self._clock(), **fields)


# -- helpers -----------------------------------------------------------------------------------------------


def _trusted(roster: Roster) -> tuple[int, ...]:
    """The numbers of the authorities whose keys are needed."""
    return (roster.authority, roster.authority - 1) if roster.former_until_s else (roster.authority,)


def _number(unlogged_count: int) -> str:
    return str(unlogged_count) if unlogged_count else ""


def _others(unlogged_count: int) -> str:
    return f" (and {unlogged_count} others since the last such line)" if unlogged_count else ""


def _short(certificate: bytes) -> str:
    """The name of an authority in the log: the start of its pin."""
    return pin_of(certificate).hex()[:16]
