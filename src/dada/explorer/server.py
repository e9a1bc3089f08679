"""HTTP for one page on this machine: who may ask, how much, and in which form.

Any page in the browser can send requests to 127.0.0.1, and any user of the machine can connect. So
a request counts only when it names this host (a name that was pointed here has another), comes from
this origin, and carries the token that is in the address the user was given.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib import resources
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dada import safe_json
from dada.explorer.session import Session

HOST = "127.0.0.1"
MOST_JSON, MOST_PICTURE = 2 * 2**20, 32 * 2**20  # bytes of a request
PATIENCE = 30.0  # seconds for a request to arrive

log = logging.getLogger(__name__)


class Server(ThreadingMixIn, TCPServer):
    """Listens on 127.0.0.1 only; a port of 0 is any that is free."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, session: Session, port: int = 0) -> None:
        self.session = session
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ValueError(f"`port` {port} cannot be used: {reason}; choose another") from None
        self.port = self.socket.getsockname()[1]

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/?token={self.token}"

    @property
    def hosts(self) -> tuple[str, str]:
        return f"{HOST}:{self.port}", f"localhost:{self.port}"

    def page(self, nonce: str) -> str:
        """The page in one piece; its style and script run because they carry the nonce."""
        html, css, js = (
            resources.files("dada.explorer").joinpath(f"page.{kind}").read_text(encoding="utf-8")
            for kind in ("html", "css", "js")
        )
        for mark, text in {"CSS": css, "JS": js, "NONCE": nonce, "TOKEN": self.token}.items():
            html = html.replace(f"@{mark}@", text)
        return html


class _RefusedError(Exception):
    """A request that is not answered."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "dada", ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _get(self) -> None:
        asked = urlsplit(self.path)
        if asked.path == "/":
            self._check_token(parse_qs(asked.query).get("token", [""])[0])
            nonce = secrets.token_urlsafe(16)
            self._send(self.server.page(nonce).encode(), "text/html; charset=utf-8", nonce=nonce)
        elif asked.path == "/api/start":
            self._check_token(self.headers.get("X-Dada-Token", ""))
            self._send_json(self.server.session.start())
        else:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "no such page")

    def _post(self) -> None:
        session = self.server.session
        self._check_token(self.headers.get("X-Dada-Token", ""))
        if self.headers.get("Origin") is None:
            raise _RefusedError(HTTPStatus.FORBIDDEN, "a request of another origin")
        if self.path == "/api/picture":
            self._send_json(session.add_picture(self._body(MOST_PICTURE)))
            return
        answers = {"/api/load": session.load, "/api/draw": session.draw, "/api/save": session.save}
        if self.path not in answers:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "no such page")
        try:
            asked = safe_json.parse(self._body(MOST_JSON).decode())
        except UnicodeDecodeError:
            raise ValueError("not JSON: not UTF-8 text") from None
        if not isinstance(asked, dict):
            raise ValueError("not a JSON object")
        self._send_json(answers[self.path](asked))

    def _answer(self, handle: Any) -> None:
        try:
            self._check_origin()
            handle()
        except _RefusedError as refused:
            self._send_json({"error": str(refused)}, refused.status)
        except (ValueError, OSError) as error:
            if isinstance(error, ConnectionError | TimeoutError):  # the page has gone away
                self.close_connection = True
                return
            self._send_json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        except Exception:
            log.exception("a request of the page failed")
            self._send_json(
                {"error": "this went wrong in dada; the terminal says where"},
                HTTPStatus.INTERNAL_SERVER_ERROR,
            )

    def _check_origin(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            raise _RefusedError(HTTPStatus.FORBIDDEN, "a request for another host")
        origins = self.headers.get_all("Origin") or []
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "a request of another origin")

    def _check_token(self, token: str) -> None:
        if not hmac.compare_digest(token.encode(errors="replace"), self.server.token.encode()):
            raise _RefusedError(
                HTTPStatus.FORBIDDEN, "open the whole address that dada explore has printed"
            )

    def _body(self, most: int) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 12):
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, "the length is missing")
        if int(length) > most:
            raise _RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {most // 2**20} MB are not taken"
            )
        return self.rfile.read(int(length))

    def _send_json(self, content: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(json.dumps(content).encode(), "application/json", status)

    def _send(
        self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, nonce: str = ""
    ) -> None:
        own = f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; " if nonce else ""
        policy = (
            f"default-src 'none'; {own}img-src data:; connect-src 'self'; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'none'"
        )
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",  # the address holds the token
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """The terminal is for the user's own lines."""
