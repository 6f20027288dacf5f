"""Decoders of files: those that people hand on, and those of state folders, ready for damaged inputs."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from coordinator.authority import audit_log
from coordinator.authority.member_roster import MemberRecord, Roster, from_json, to_json
from coordinator.authority.token_table import TokenRecord, TokenTable
from coordinator.jobs.journal import Entry, Journal
from mesh.models.safetensors import load_safetensors
from wire.addresses import parse_address
from wire.errors import ConfigError, GraphError, InputError, JournalDamaged, VersionMismatch
from wire.ir.codec import hash_bytes
from wire.ir.file import load_graph, load_params
from wire.ir.verify import verify
from wire.joining.credentials import Credentials
from wire.link.identity import kept_node_id
from wire.link.membership import coordinator_known
from wire.security.certificates import authority_from_pem, certificate_pem, new_authority
from worker.daemon.pause_file import PauseFiles
from worker.devices.benchmark import measured
from worker.engine.protocol import EngineInfo, Measured

from ..cases.random_graphs import random_graph
from ..tls import authority, credentials
from .faulty_disk import QuickDisk
from .fuzzing import Target, refused_with
from .tampering import JSON, MSGPACK, Form


def graph_files(folder: Path) -> Target:
    """Half of the inputs are containers that are whole, hashes and all, around what is not."""
    path = folder / "x.wire"
    originals = []
    for made in (random_graph(seed, 2, 6) for seed in range(10)):
        made.graph.save(path, made.params)
        originals.append(path.read_bytes())

    def read(data: bytes) -> Any:
        path.write_bytes(data)
        return load_graph(path), load_params(path)

    def check(found: Any, data: bytes) -> None:
        graph, params = found
        verify(graph)
        graph.save(folder / "again.wire", params)
        assert load_graph(folder / "again.wire") == graph

    attempt = refused_with((GraphError, InputError, VersionMismatch), read, check)
    return Target(originals, attempt, Form(_wire_parts, _wire_file, MSGPACK.odd))


def _wire_parts(data: bytes) -> Any:
    (length,) = struct.unpack_from("<Q", data)
    names = json.loads(data[8 : 8 + length])["__metadata__"]
    return [
        {name: names[name] for name in names if name == "format"},
        {k: v.tobytes() for k, v in load_tensors(data).items()},
    ]


def _wire_file(parts: Any) -> bytes:
    match parts:
        case [dict(said), dict(entries), *_]:
            pass
        case _:
            said, entries = {}, {}
    content = {str(name): data if type(data) is bytes else str(data)[:200].encode() for name, data in entries.items()}
    hashes = {name: hash_bytes(data).hex() for name, data in content.items()}
    arrays = {name: np.frombuffer(data, np.uint8) for name, data in content.items()}
    texts = {str(key): str(value)[:300] for key, value in said.items()}
    made: bytes = save_tensors(arrays, {**hashes, **texts})
    return made


def safetensors(folder: Path) -> Target:
    path = folder / "x.safetensors"
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array(3, np.int64),
        "c": np.zeros((0, 3), np.uint8),
    }

    def check(found: Any, data: bytes) -> None:
        for name, array in found.items():
            assert not array.flags.writeable and array.nbytes <= len(data), name
            assert len(array.tobytes()) == array.nbytes

    def read(data: bytes) -> Any:
        path.write_bytes(data)
        return load_safetensors(path, mmap=len(data) % 2 == 0)

    originals = [save_tensors(arrays), save_tensors(arrays, {"format": "np"}), save_tensors({"a": arrays["a"]})]
    return Target(originals, refused_with(InputError, read, check), Form(_header_and_body, _with_header, JSON.odd))


def _header_and_body(data: bytes) -> Any:
    (length,) = struct.unpack_from("<Q", data)
    return [json.loads(data[8 : 8 + length]), data[8 + length :]]


def _with_header(parts: Any) -> bytes:
    header, body = parts if type(parts) is list and len(parts) == 2 else (parts, b"")
    text = json.dumps(header, default=repr).encode()
    return struct.pack("<Q", len(text)) + text + (body if type(body) is bytes else b"")


# -- a coordinator's state folder --------------------------------------------------------------------------


def rosters(folder: Path) -> Target:
    record = TokenRecord("abcdefgh", bytes(32), "worker", 3, 1.0, 2.0, False, (("n1", (b"n" * 32, b"m" * 32)),))
    members = [MemberRecord("n1", "desk", "worker", "abcdefgh", "10.0.0.9", 1.0, 86400.0)]
    members += [replace(members[0], node_id="n2", revoked_s=5.0)]
    made = Roster("home", TokenTable(b"d" * 32, [record]), {each.node_id: each for each in members}, 1, 2, 9.0)

    def check(roster: Roster, data: bytes) -> None:
        again = to_json(roster)
        assert to_json(from_json(again, b"d" * 32)) == again
        roster.listed(3.0), roster.behind(), roster.former(3.0)
        for each in roster.tokens.records:
            each.state(3.0)
        json.loads(again, parse_constant=_no_number)

    return Target([to_json(made)], refused_with(ConfigError, lambda data: from_json(data, b"d" * 32), check), JSON)


def _no_number(text: str) -> None:
    raise AssertionError(f"{text} is no time")


def audits(folder: Path) -> Target:
    """Whoever alters a line breaks the chain, except at the end."""
    log = audit_log.AuditLog(folder, QuickDisk())
    for number in range(3):
        log.append("joined", 1.0 + number, node="n1", name="desk")
    whole = log.path.read_bytes()

    def attempt(data: bytes) -> bool:
        log.path.write_bytes(data)
        verdict = audit_log.verify(folder)
        return bool(verdict.broken) or verdict.lines < 3

    def take_apart(data: bytes) -> Any:
        return [json.loads(line) for line in data.splitlines()]

    def put_together(tree: Any) -> bytes:
        return b"".join(JSON.put_together(line) + b"\n" for line in (tree if isinstance(tree, list) else [tree]))

    return Target([whole], attempt, Form(take_apart, put_together, JSON.odd))


def journals(folder: Path) -> Target:
    """The database and the file beside it, one behind the other; either may be damaged."""
    entries = [Entry(f"job{number}", kind, b'{"values": []}') for number in range(3) for kind in ("accepted", "note")]
    made, _ = Journal.open(folder / "made", 1, QuickDisk())
    made.write(entries)
    made.close()
    kept = Journal.open(folder / "made", 1, QuickDisk())
    kept[0].close()
    newest = (folder / "made" / "acknowledged").read_bytes()
    whole = newest + (folder / "made" / "jobs.sqlite").read_bytes()
    place = folder / "tried"

    def attempt(data: bytes) -> bool:
        place.mkdir(exist_ok=True)
        for path in place.iterdir():
            path.unlink()
        end = data.find(b"\n") + 1
        (place / "acknowledged").write_bytes(data[:end])
        (place / "jobs.sqlite").write_bytes(data[end:])
        try:
            journal, found = Journal.open(place, 1, QuickDisk())
        except JournalDamaged:
            return True
        journal.close()
        assert found == kept[1], "altered entries were taken"
        return False

    return Target([whole], attempt)


def authorities(folder: Path) -> Target:
    """An authority's key and certificate, one behind the other."""
    made = new_authority("home", 1.0)
    whole = made.key_pem() + certificate_pem(made.certificate)

    def read(data: bytes) -> Any:
        key, end, rest = data.partition(b"-----END PRIVATE KEY-----\n")
        return authority_from_pem(key + end, rest)

    def check(found: Any, data: bytes) -> None:
        assert found.key_pem() == made.key_pem()

    return Target([whole], refused_with(ConfigError, read, check))


# -- any node's state folder -------------------------------------------------------------------------------


def identities(folder: Path) -> Target:
    """The files of Credentials."""
    made = credentials(folder, authority())
    files = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    signs = {b"{": folder / "mesh.json", b"PRIVATE": made.files.key, b"CRL": made.files.trust}

    def attempt(data: bytes) -> bool:
        path = next((path for sign, path in signs.items() if sign in data), made.files.certificate)
        path.write_bytes(data)
        path.chmod(0o600)
        try:
            found = Credentials(folder, QuickDisk())
        except ConfigError:
            return True
        finally:
            path.write_bytes(files[path])
        assert found.node_id == made.node_id
        return False

    return Target([*files.values()], attempt)


def measurements(folder: Path) -> Target:
    """Figures of a device: damaged ones are measured anew."""
    engine = _Engine()
    measured(engine, folder)
    (figures,) = folder.glob("*.json")

    def attempt(data: bytes) -> bool:
        before = engine.measurements
        figures.write_bytes(data)
        found = measured(engine, folder)
        assert all(math.isfinite(value) and value >= 0 for value in asdict(found).values())
        return engine.measurements > before

    return Target([figures.read_bytes()], attempt, JSON)


def remembered(folder: Path) -> Target:
    """Where the coordinator was, who the node is and who paused it: whatever damages them, it goes on without."""
    known, own, pauses = folder / "coordinator", folder / "node_id", PauseFiles(folder)

    def attempt(data: bytes) -> bool:
        for path in (known, own, folder / "paused", folder / "duty"):
            path.write_bytes(data)
        assert kept_node_id(folder) == kept_node_id(folder)
        assert pauses.wish() in ("", "machine", "coordinator") and isinstance(pauses.duty(), str)
        found = coordinator_known(known)
        assert all(map(parse_address, found))
        return not found

    return Target([b'["10.0.0.1:7100", "[fe80::1]:7100"]'], attempt, JSON)


class _Engine:
    """Something to measure."""

    def __init__(self) -> None:
        self.info = EngineInfo("cpu", "", "numpy", "", True, 1, {}, {})
        self.measurements = 0

    def measure(self) -> Measured:
        self.measurements += 1
        return Measured(1.5, 2.5, 1e-5)
