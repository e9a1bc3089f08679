"""The page of `dada explore`: who is answered, what is answered, and that it ends."""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dada
from dada.explorer import Server, open_explorer
from dada.explorer.server import MOST_JSON, MOST_PICTURE
from dada.explorer.session import DRAWS, MOST_PICTURES, MOST_STEPS, Session
from dada.report.samples import Sample

ROOT = Path(__file__).parents[1]
POLICY = dada.Policy.from_rows(
    [[("Rotate", 0.9, 0.8), ("Color", 0.7, (0.0, 1.0))], [("Invert", 0.5), ("Cutout", 1.0, 1.0)]],
    "strength",
)


def noise(seed: int = 0, side: int = 32) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    file = POLICY.save(tmp_path / "policy.json")
    session = Session(
        file,
        against=None,
        data=None,
        pictures=[Sample(image=noise(), label="noise")],
        out=tmp_path / "new.json",
    )
    with Server(session) as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}).start()
        yield made
        made.shutdown()


def ask(
    server: Server, path: str, body: Any = None, **changed: str | None
) -> tuple[int, dict[str, str], bytes]:
    """As the page asks; `changed` headers, with _ for -, and None for none."""
    headers: dict[str, str | None] = {
        "Host": server.hosts[0],
        "Origin": f"http://{server.hosts[0]}",
        "X-Dada-Token": server.token,
        **{name.replace("_", "-"): value for name, value in changed.items()},
    }
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.putrequest("GET" if body is None else "POST", path, skip_host=True)
    if content is not None:
        headers.setdefault("Content-Length", str(len(content)))
    for name, value in headers.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(content)
    answer = connection.getresponse()
    return answer.status, dict(answer.headers), answer.read()


def answered(server: Server, path: str, body: Any = None) -> Any:
    status, _, content = ask(server, path, body)
    assert status == 200, content
    return json.loads(content)


def refused(server: Server, path: str, body: Any = None, **changed: str | None) -> tuple[int, str]:
    status, _, content = ask(server, path, body, **changed)
    return status, json.loads(content)["error"]


def drawing(policy: dada.Policy = POLICY, seed: int = 0, picture: Any = 0) -> dict[str, Any]:
    return {"policy": json.loads(policy.to_json()), "seed": seed, "picture": picture}


# --- who is answered ----------------------------------------------------------------------------


def test_it_listens_on_this_machine_only(server: Server) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    for address in addresses - {"127.0.0.1", "127.0.1.1"}:
        with pytest.raises(OSError):
            socket.create_connection((address, server.port), timeout=2).close()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"Host": "evil.example"}, "another host"),
        ({"Host": "evil.example:80"}, "another host"),
        ({"Host": None}, "another host"),
        ({"Origin": "http://evil.example"}, "another origin"),
        ({"Origin": "null"}, "another origin"),
        ({"Origin": None}, "another origin"),
        ({"X_Dada_Token": None}, "the whole address"),
        ({"X_Dada_Token": "x" * 32}, "the whole address"),
        ({"X_Dada_Token": "\xe9"}, "the whole address"),
    ],
)
def test_only_its_own_page_is_answered(
    server: Server, changed: dict[str, str | None], reason: str
) -> None:
    status, said = refused(server, "/api/draw", drawing(), **changed)
    assert status == 403 and reason in said
    assert not (server.session.out).exists()


def test_the_page_itself_needs_the_token(server: Server) -> None:
    status, headers, page = ask(server, server.address.partition(str(server.port))[2], Origin=None)
    assert status == 200 and server.token.encode() in page
    for path in ("/", "/?token=", "/?token=guess"):
        assert ask(server, path)[0] == 403
    assert ask(server, "/api/start", X_Dada_Token="")[0] == 403
    assert ask(server, "/../policy.json")[0] == 404
    policy = headers["Content-Security-Policy"]
    nonce = re.search(r"script-src 'nonce-([\w-]+)'", policy)
    assert nonce is not None and page.count(f'nonce="{nonce[1]}"'.encode()) == 2
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and headers["Cache-Control"] == "no-store"


def test_the_page_is_whole_and_asks_no_other_server(server: Server) -> None:
    page = server.page("once")
    assert re.findall(r"https?://|@[A-Z]+@|innerHTML|insertAdjacent|document\.write", page) == []


# --- what is answered ---------------------------------------------------------------------------


def test_draws_are_those_of_the_transform(server: Server) -> None:
    got = answered(server, "/api/draw", drawing(seed=3))
    assert len(got["draws"]) == DRAWS
    for k, draw in enumerate(got["draws"]):
        kind, _, content = draw["picture"].partition(",")
        assert kind == "data:image/png;base64"
        shown = Image.open(io.BytesIO(base64.b64decode(content)))
        expected = POLICY.transform(seed=3 * DRAWS + k)(noise())
        assert np.array_equal(np.asarray(shown), np.asarray(expected))
    words = [word for draw in got["draws"] for word in draw["words"]]
    assert any(re.fullmatch(r"Rotate by -?24\.0 degrees", word) for word in words)
    assert got["words"][0] == [
        "Rotate by ±24.0 degrees",
        "Color times 0.10 to 1.00 or 1.00 to 1.90",
    ]
    assert got["rates"]["Cutout"] == 0.5
    assert answered(server, "/api/draw", drawing(seed=3)) == got


def test_an_operation_that_is_switched_off_leaves_the_others_chances(server: Server) -> None:
    off = json.loads(POLICY.to_json())
    off["subpolicies"][0]["ops"][0]["probability"] = 0
    drawn = [
        answered(server, "/api/draw", {**drawing(), "policy": policy})["draws"]
        for policy in (json.loads(POLICY.to_json()), off)
    ]
    before, after = ([draw["words"] for draw in draws] for draws in drawn)
    without = [[word for word in words if not word.startswith("Rotate")] for words in before]
    assert after == without and before != without


def test_what_is_saved_is_a_policy_that_compare_takes(server: Server, tmp_path: Path) -> None:
    edited = json.loads(POLICY.to_json())
    edited["subpolicies"][0]["ops"] = []
    edited["provenance"] = {"verification": {"verdict": "better"}}
    for name in ("new.json", "new-2.json"):
        said = answered(server, "/api/save", {"policy": edited, "name": "mine"})
        assert said["file"] == str(tmp_path / name)
    saved = dada.Policy.load(tmp_path / "new.json")
    assert saved.subpolicies[0].ops == () and saved.subpolicies[1] == POLICY.subpolicies[1]
    assert saved.provenance["edited_from"] == "mine" and "verification" not in saved.provenance
    assert said["command"].startswith("dada compare DATA --policies ")
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    done = dada.compare(
        (images, np.arange(40) % 2), [saved, "none"], seeds=1, epochs=1, device="cpu"
    )
    assert len(done.policies) == 2


def test_pictures_are_taken_shrunk_and_few(server: Server) -> None:
    first = answered(server, "/api/picture", png(noise(1, 700)))
    assert server.session.pictures[first["id"]].image.size == (512, 512)
    for i in range(MOST_PICTURES):
        last = answered(server, "/api/picture", png(noise(i, 4)))
    assert len(server.session.pictures) == MOST_PICTURES and 0 in server.session.pictures
    assert answered(server, "/api/draw", drawing(picture=last["id"]))["draws"]
    assert "drop it again" in refused(server, "/api/draw", drawing(picture=first["id"]))[1]


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/api/draw", b"{", "not JSON"),
        ("/api/draw", b"[]", "not a JSON object"),
        ("/api/draw", b"\xff", "not UTF-8"),
        ("/api/draw", {**drawing(), "policy": {"format": "x"}}, "not a policy file"),
        ("/api/draw", {**drawing(), "policy": None}, "not a policy file"),
        ("/api/draw", drawing(seed=-1), "seed should"),
        ("/api/draw", {**drawing(), "seed": True}, "seed should"),
        ("/api/draw", drawing(picture="0"), "no longer kept"),
        ("/api/draw", drawing(picture=[0]), "no longer kept"),
        ("/api/load", {"name": "../../etc/passwd"}, "no policy"),
        ("/api/load", {"name": 3}, "name should be text"),
        ("/api/load", {"text": "{}"}, "not a policy file"),
        ("/api/save", {"policy": json.loads(POLICY.to_json())}, "name should be text"),
        ("/api/picture", b"GIF89a", "not taken"),
        ("/api/picture", b"", "the file is empty"),
    ],
)
def test_mistakes_are_named(server: Server, path: str, body: Any, reason: str) -> None:
    status, said = refused(server, path, body)
    assert status == 400 and reason in said and "\n" not in said
    assert str(Path(os.sep, "tmp")) not in said


def test_requests_are_bounded(server: Server) -> None:
    for path, most in (("/api/draw", MOST_JSON), ("/api/picture", MOST_PICTURE)):
        status, said = refused(server, path, b"", Content_Length=str(most + 1))
        assert status == 413 and "MB" in said
        assert ask(server, path, b"", Content_Length="-1")[0] == 411
        assert ask(server, path, b"", Content_Length="9" * 30)[0] == 411
    long = dada.Policy.from_rows([[("Invert", 0.5)] * (MOST_STEPS + 1)])
    assert "up to 8 operations" in refused(server, "/api/draw", drawing(long))[1]
    bomb = io.BytesIO()
    Image.new("1", (9_000, 9_000)).save(bomb, "PNG")
    assert "million pixels" in refused(server, "/api/picture", bomb.getvalue())[1]


def test_policies_by_name_or_as_text(server: Server) -> None:
    assert answered(server, "/api/load", {"name": "uniform"})["policy"]["subpolicies"]
    assert answered(server, "/api/load", {"name": "randaugment:2,0.5"})["policy"]
    got = answered(server, "/api/load", {"text": POLICY.to_json()})
    assert dada.Policy.from_json(json.dumps(got["policy"])) == POLICY
    start = answered(server, "/api/start")
    assert "trivialaugment" in start["names"] and len(start["pictures"]) == 1
    assert answered(server, "/api/load", {"name": start["sides"][0]["name"]}) == start["sides"][0]


def test_a_fault_of_ours_is_said_without_its_inside(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server.session, "draw", lambda asked: 1 / 0)
    status, said = refused(server, "/api/draw", drawing())
    assert status == 500 and "Zero" not in said and "ZeroDivisionError" in caplog.text


def test_a_port_that_is_taken_is_named(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"`port` {server.port} cannot be used"):
        open_explorer("dada-cifar10", port=server.port)
    with pytest.raises(ValueError, match="`port` 70000 cannot be used"):
        open_explorer("dada-cifar10", port=70_000)


def test_ctrl_c_ends_the_command(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dada", "explore", "dada-cifar10"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline()
    found = re.match(r"open http://127\.0\.0\.1:(\d+)/\?token=[\w-]{20,}$", address)
    assert found is not None, address
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130 and "stopped by Ctrl-C" in said and "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=2).close()
