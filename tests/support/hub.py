"""A stand-in for a hub of models: the part of its API that a download uses, on a port of this machine."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LARGE = (".safetensors", ".gguf")  # what a hub keeps apart, by sha256


@dataclass
class Hub:
    """Repositories by name: files by path.  What is asked is kept in `asked`; the rest makes it fail."""

    repositories: dict[str, dict[str, bytes]]
    revisions: tuple[str, ...] = ("main",)
    gated: tuple[str, ...] = ()
    cut_after: int = 0  # bytes of a large file, after which a connection is closed ...
    cuts: int = 0  # ... so many times
    down_after_cuts: bool = False  # whether nothing is answered but 503 then
    down: bool = False
    flipped: str = ""  # a file that comes with one bit changed
    short_by: int = 0  # bytes that a large file has less than the hub says
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, Range

    def __enter__(self) -> Hub:
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def commit(self, name: str) -> str:
        """The name of a repository's only commit."""
        content = b"".join(path.encode() + data for path, data in sorted(self.repositories[name].items()))
        return hashlib.sha1(content, usedforsecurity=False).hexdigest()

    def ranges(self, path: str) -> list[str]:
        """What was asked of a file's bytes."""
        return [asked for method, told, asked in self.asked if method == "GET" and told.endswith(path)]


def folder_files(folder: Path) -> dict[str, bytes]:
    """The files of a folder, as a repository has them."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def checksum(data: bytes, large: bool) -> str:
    if large:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, body: bool) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        hub.asked.append((self.command, path, self.headers.get("Range", "")))
        if hub.down:
            return self._refuse(503, "Down", "Service unavailable")
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = api or file
        name = found[1] if found else ""
        if name not in hub.repositories:
            return self._refuse(404, "RepoNotFound", "Repository not found")
        if name in hub.gated:
            return self._refuse(403, "GatedRepo", "Access to this model is restricted")
        commit = hub.commit(name)
        revision = found[2] if found else ""
        if revision not in (*hub.revisions, commit):
            return self._refuse(404, "RevisionNotFound", f"Revision {revision} not found")
        if api:
            entries = [self._entry(path, data) for path, data in hub.repositories[name].items()]
            return self._json({"id": name, "sha": commit, "siblings": entries})
        data = hub.repositories[name].get(file[3]) if file else None
        if data is None:
            return self._refuse(404, "EntryNotFound", "Entry not found")
        self._file(file[3] if file else "", data, commit, body)
        return None

    @staticmethod
    def _entry(path: str, data: bytes) -> dict[str, Any]:
        large = path.endswith(LARGE)
        entry: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": checksum(data, False)}
        if large:
            entry["lfs"] = {"sha256": checksum(data, True), "size": len(data), "pointerSize": 130}
        return entry

    def _file(self, path: str, data: bytes, commit: str, body: bool) -> None:
        large, hub = path.endswith(LARGE), self.hub
        told = checksum(data, large)
        if hub.flipped == path:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if large and body:
            data = data[: len(data) - hub.short_by]
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("ETag", f'"{told}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if not body:
            return
        rest = data[start:]
        if large and hub.cuts > 0 and len(rest) > hub.cut_after:
            hub.cuts -= 1
            hub.down = hub.down_after_cuts
            self.wfile.write(rest[: hub.cut_after])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(rest)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {})

    def _refuse(self, status: int, code: str, text: str) -> None:
        self._send(status, json.dumps({"error": text}).encode(), {"X-Error-Code": code, "X-Error-Message": text})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
