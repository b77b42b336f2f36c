"""A Hub on this machine: it serves folders as repositories, with licences to accept, and can cut connections.

It answers what the Hub's own client asks of it when it downloads a model: the commit of a revision, the list of files,
and the files themselves, whole or from a byte on. `sent` counts the bytes of each file that left it.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

CHUNK = 1 << 14


@dataclass
class LocalHub:
    """Repositories by name, each a folder; those in `gated` need a token in `accepted`, those who accepted the licence.

    `cuts` are the bytes of files at which connections are cut, one after the other, by the name of the file.
    """

    folders: Mapping[str, Path]
    gated: frozenset[str] = frozenset()
    accepted: dict[str, set[str]] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[str, int]] = field(default_factory=list)
    """Repositories that were refused, with the status."""
    url: str = ""

    def commit(self, repository: str) -> str:
        """The commit at the head of a repository: a digest of its name."""
        return hashlib.sha1(repository.encode()).hexdigest()

    def files(self, repository: str) -> Iterator[Path]:
        """The files of a repository."""
        return (path for path in sorted(self.folders[repository].iterdir()) if path.is_file())

    def status_of(self, repository: str, token: str | None) -> int:
        """Whether a request is granted: 200, 404 for an unknown repository, 401 without login, 403 without licence."""
        if repository not in self.folders:
            return 404
        if repository not in self.gated:
            return 200
        if token is None:
            return 401
        return 200 if repository in self.accepted.get(token, set()) else 403

    @contextmanager
    def serve(self) -> Iterator[LocalHub]:
        """Answer at `url` while the context is open."""
        handler = type("Handler", (_Handler,), {"hub": self})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            self.url = f"http://127.0.0.1:{server.server_port}"
            try:
                yield self
            finally:
                server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if (match := re.fullmatch(r"/api/models/(\w[^/]*/[^/]+)/(revision|tree)/([^/]+)", path)) is not None:
            repository, what, revision = match.groups()
            if self._granted(repository, revision):
                self._json(self._description(repository) if what == "revision" else self._tree(repository))
        elif (match := re.fullmatch(r"/(\w[^/]*/[^/]+)/resolve/([^/]+)/(.+)", path)) is not None:
            repository, revision, name = match.groups()
            if self._granted(repository, revision):
                self._file(repository, name)
        else:
            self._refuse(404, "EntryNotFound")

    do_HEAD = do_GET

    def _granted(self, repository: str, revision: str) -> bool:
        header = self.headers.get("Authorization", "")
        status = self.hub.status_of(repository, header.removeprefix("Bearer ") or None)
        if status != 200:
            self.hub.refused.append((repository, status))
            self._refuse(status, "RepoNotFound" if status == 404 else "GatedRepo")
            return False
        if revision not in ("main", self.hub.commit(repository)):
            self._refuse(404, "RevisionNotFound")
            return False
        return True

    def _description(self, repository: str) -> dict[str, object]:
        siblings = [{"rfilename": path.name} for path in self.hub.files(repository)]
        return {"id": repository, "sha": self.hub.commit(repository), "siblings": siblings, "gated": "manual"}

    def _tree(self, repository: str) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": _digest(path)}
            for path in self.hub.files(repository)
        ]

    def _file(self, repository: str, name: str) -> None:
        path = self.hub.folders[repository] / name
        if not path.is_file():
            self._refuse(404, "EntryNotFound")
            return
        content, start = path.read_bytes(), self._start()
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{_digest(path)}"')
        self.send_header("X-Repo-Commit", self.hub.commit(repository))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "GET":
            self._send(name, content, start)

    def _start(self) -> int:
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        return int(match[1]) if match else 0

    def _send(self, name: str, content: bytes, start: int) -> None:
        """Send a file from a byte on, or the part of it before the connection is cut."""
        cuts = self.hub.cuts.get(name, [])
        end = cuts.pop(0) if cuts else len(content)
        for begin in range(start, end, CHUNK):
            part = content[begin : min(begin + CHUNK, end)]
            self.wfile.write(part)
            self.hub.sent[name] += len(part)
        if end < len(content):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def _json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
