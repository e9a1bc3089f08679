"""A stand-in of the Hugging Face Hub here: the few requests that pushing and loading make.

Repositories are dictionaries of files; a write needs the token, as on the hub.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_stand_in"


class HubStandIn(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.requests: list[str] = []
        self.breaks_off = False  # before the body of whatever is downloaded

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def hub_stand_in() -> Iterator[HubStandIn]:
    with HubStandIn() as hub:
        threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}).start()
        yield hub
        hub.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: HubStandIn

    def do_HEAD(self) -> None:
        self._file(with_body=False)

    def do_GET(self) -> None:
        self._file(with_body=True)

    def _file(self, *, with_body: bool) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        found = re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", self.path)
        files = self.server.files.get(found[1]) if found else None
        if found is None or files is None:
            self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif found[2] not in ("main", _commit(files)):
            self._answer(404, {}, {"X-Error-Code": "RevisionNotFound"})
        elif found[3] not in files:
            self._answer(404, {}, {"X-Error-Code": "EntryNotFound"})
        else:
            content = files[found[3]]
            etag = hashlib.sha1(content).hexdigest()
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": _commit(files)}
            self._send(200, content, headers, with_body=with_body)

    def do_POST(self) -> None:
        self.server.requests.append(f"POST {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, {"error": "Invalid credentials"})
        elif self.path == "/api/repos/create":
            self._create(json.loads(body))
        elif found := re.fullmatch(r"/api/models/(.+/.+)/preupload/main", self.path):
            asked = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked
            ]
            self._answer(200, {"files": modes})
        elif found := re.fullmatch(r"/api/models/(.+/.+)/commit/main", self.path):
            files = self.server.files[found[1]]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            commit = _commit(files)
            url = f"{self.server.address}/{found[1]}/commit/{commit}"
            self._answer(200, {"success": True, "commitOid": commit, "commitUrl": url})
        else:
            self._answer(404, {"error": f"the stand-in has no {self.path}"})

    def _create(self, asked: dict[str, Any]) -> None:
        repo = f"{asked['organization']}/{asked['name']}"
        status = 409 if repo in self.server.files else 200
        self.server.files.setdefault(repo, {})
        private = asked.get("private") or asked.get("visibility") == "private"
        self.server.private.setdefault(repo, bool(private))
        self._answer(status, {"url": f"{self.server.address}/{repo}", "name": repo})

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(content).encode(), headers or {})

    def _send(
        self, status: int, content: bytes, headers: dict[str, str], *, with_body: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        breaks_off = self.server.breaks_off and self.command == "GET"
        if with_body and self.command != "HEAD" and not breaks_off:
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def _commit(files: dict[str, bytes]) -> str:
    """Forty hexadecimal digits that change with the files."""
    digest = hashlib.sha1()
    for name in sorted(files):
        digest.update(name.encode() + files[name])
    return digest.hexdigest()
