"""The page of `dada explore` in a real browser: mouse, keyboard, phone, and hostile files."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image

import dada
from dada.explorer import Server, open_explorer

sys.path.append(str(Path(__file__).parents[1] / "benchmarks" / "tools"))
from browser import Browser, find_browser, find_driver

pytestmark = pytest.mark.skipif(
    not (find_browser() and find_driver()), reason="needs chromium and chromedriver"
)

HOSTILE = '"><img src=x onerror=document.title="gotcha"><script>document.title="gotcha"</script>'
RIGHT, TAB = "\ue014", "\ue004"
DRAWN = "document.querySelectorAll('.draws img').length == 24"
POLICY = dada.Policy.from_rows(
    [[("Rotate", 0.5, 0.5), ("Color", 0.5, (0.2, 0.8))], [("Invert", 1.0)]], "strength"
)
CAPTIONS = "[...document.querySelectorAll(`[data-side='{}'] figcaption`)].map(c => c.innerText)"


def pictures(browser: Browser, side: int = 0) -> list[str]:
    chosen = f"document.querySelectorAll(`[data-side='{side}'] .draws img`)"
    return browser.run(f"return [...{chosen}].map(i => i.src)")


def set_slider(browser: Browser, key: str, value: float) -> None:
    browser.run(
        "const s = document.querySelector(`input[type=range][data-key='${arguments[0]}']`);"
        "s.value = arguments[1]; s.dispatchEvent(new Event('input'))",
        key,
        value,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("explorer")
    for label, name in enumerate(("cat", HOSTILE.replace("/", "."))):
        (made / "photos" / name).mkdir(parents=True)
        for i in range(8):
            gradient = Image.linear_gradient("L").rotate(90 * label + 20 * i).resize((32, 32))
            Image.merge("RGB", [gradient, gradient.rotate(90), gradient.rotate(180)]).save(
                made / "photos" / name / f"{i}.png"
            )
    named = dada.Policy(POLICY.subpolicies, POLICY.space, provenance={"name": HOSTILE})
    named.save(made / HOSTILE.replace("/", "."))
    return made


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[Server]:
    hostile = folder / HOSTILE.replace("/", ".")
    with open_explorer(hostile, str(folder / "photos"), out=tmp_path / "edited.json") as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}).start()
        yield made
        made.shutdown()


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with Browser() as made:
        yield made


@pytest.fixture
def browser(window: Browser, server: Server) -> Browser:
    window.open(server.address)
    window.wait(DRAWN)
    return window


def test_draws_change_with_what_is_changed(browser: Browser) -> None:
    before, right = pictures(browser), pictures(browser, 1)
    assert before == right
    set_slider(browser, "Rotate probability", 1)
    set_slider(browser, "Rotate magnitude", 1)
    browser.wait(f"({CAPTIONS.format(0)}).some(c => c.includes('30.0 degrees'))")
    assert pictures(browser) != before and pictures(browser, 1) == right
    browser.click("input[type=checkbox][data-key=Rotate]")
    browser.wait(f"!({CAPTIONS.format(0)}).some(c => c.includes('Rotate'))")
    browser.click("#reset")
    browser.wait("document.querySelector('[data-side=\"0\"] .edited').textContent == ''")
    browser.wait(f"document.querySelector('.draws img').src == {json.dumps(before[0])}")
    assert pictures(browser) == before
    browser.click("#again")
    browser.wait(f"document.querySelector('.draws img').src != {json.dumps(before[0])}")
    assert browser.complaints() == []


def test_two_policies_side_by_side_and_single_steps(browser: Browser, tmp_path: Path) -> None:
    choose = "const c = document.querySelectorAll('.choose')[1]; c.value = 'none'; "
    browser.run(choose + "c.dispatchEvent(new Event('change'))")
    browser.wait(f"({CAPTIONS.format(1)}).every(c => c == 'left as it is')")
    assert any("Invert" in words for words in browser.run(f"return {CAPTIONS.format(0)}"))
    browser.click("summary")
    browser.wait("document.querySelectorAll('#steps .row').length == 3")
    set_slider(browser, "1.0 probability", 0.25)
    set_slider(browser, "0.1 to", 0.1)  # below the lower end, which comes along
    assert (
        browser.run("return document.querySelector(`[data-key='0.1 magnitude from']`).value")
        == "0.1"
    )
    browser.click("input[type=checkbox][data-key='0.0']")
    browser.click("#save")
    browser.wait("!document.querySelector('#saved').hidden")
    saved = dada.Policy.load(tmp_path / "edited.json")
    (color,), (invert,) = (subpolicy.ops for subpolicy in saved.subpolicies)
    assert color == dada.PolicyOp("Color", 0.5, 0.1) and invert.probability == 0.25
    assert "dada compare" in browser.run("return document.querySelector('#saved').innerText")
    assert browser.complaints() == []


def test_the_keyboard_is_enough(browser: Browser) -> None:
    browser.run("document.querySelector('.skip').focus()")
    reached = set()
    for _ in range(45):
        browser.press(TAB)
        reached.add(browser.run("const e = document.activeElement; return e.dataset.key || e.id"))
    assert {"file", "again", "reset", "save", "Rotate probability", "Invert"} <= reached
    assert "Rotate magnitude" in reached and "Invert magnitude" not in reached  # it has none
    browser.run("document.querySelector(`input[data-key='Rotate probability']`).focus()")
    browser.press(RIGHT * 50)
    browser.wait("document.querySelector('[data-side=\"0\"] .edited').textContent == 'edited'")
    shown = "document.querySelector('[data-key=Rotate] output').textContent"
    assert browser.run(f"return {shown}") == "1.00"
    unnamed = (
        "return [...document.querySelectorAll('input, select, button, img')]"
        ".filter(e => !(e.alt || e.textContent || e.closest('label')?.textContent"
        " || e.parentElement.querySelector('img')?.alt)).length"
    )
    assert browser.run(unnamed) == 0


def test_hostile_files_do_nothing(browser: Browser, folder: Path, tmp_path: Path) -> None:
    title = "return document.title"
    assert browser.run(title) == "dada explore"
    picture = tmp_path / HOSTILE.replace("/", ".").replace('"', "'")
    Image.new("RGB", (20, 20), "teal").save(picture, "PNG")
    browser.type("#file", str(picture))
    browser.wait("document.querySelectorAll('#pictures img').length == 9")
    wrong = json.loads(POLICY.to_json())
    wrong["subpolicies"][0]["ops"][0]["op"] = HOSTILE
    drop = (
        "const data = new DataTransfer(); data.items.add(new File([arguments[1]], arguments[0]));"
        "document.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true}))"
    )
    browser.run(drop, HOSTILE + ".json", json.dumps(wrong))
    browser.wait("document.querySelector('#status').classList.contains('bad')")
    assert "onerror" in browser.run("return document.querySelector('#status').textContent")
    browser.run(drop, "x.png", "no picture")
    browser.wait("document.querySelector('#status').textContent.includes('not taken')")
    right = dada.Policy.from_rows([[("Invert", 1.0)]], name=HOSTILE).to_json()
    browser.run(drop, "mine.json", right)
    browser.wait(f"({CAPTIONS.format(0)}).every(c => c == 'Invert')")
    assert browser.run(title) == "dada explore"
    assert browser.run("return document.querySelectorAll('script, iframe').length") == 1
    assert all("400" in line for line in browser.complaints())


def test_a_page_of_another_origin_gets_nothing(
    window: Browser, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "index.html").write_text("<title>other</title>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.func.log_message = lambda *line: None  # type: ignore[attr-defined]
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.02}).start()
        window.open(f"http://127.0.0.1:{other.server_port}/")
        tried = (
            "const [address, options] = arguments;"
            "return fetch(address, options).then(a => a.type + a.status, e => 'refused')"
        )
        start = f"http://127.0.0.1:{server.port}/api/start"
        headers = {"X-Dada-Token": server.token}
        assert window.run(tried, start, {"headers": headers}) == "refused"
        assert window.run(tried, start, {"mode": "no-cors"}) == "refused"
        save = start.replace("start", "save")
        body = json.dumps({"policy": json.loads(POLICY.to_json()), "name": "x"})
        blind = {"method": "POST", "mode": "no-cors", "headers": headers, "body": body}
        assert window.run(tried, save, blind) == "refused"
        assert not (tmp_path / "edited.json").exists()
        other.shutdown()
    window.complaints()


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_all_of_it(server: Server, dark: bool) -> None:
    with Browser(390, 844, dark=dark) as phone:
        phone.open(server.address)
        phone.wait(DRAWN)
        assert phone.run("return innerWidth") == 390
        wide = "return document.documentElement.scrollWidth"
        assert phone.run(wide) <= 390
        phone.click("summary")
        assert phone.run(wide) <= 390
        # Draws stay in sight above the sliders that change them.
        phone.run("document.querySelector(`input[data-key='Invert probability']`).scrollIntoView()")
        top = "return document.querySelector('.draws').getBoundingClientRect().top"
        assert 0 <= phone.run(top) < 200
        ground = phone.run("return getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(20, 22, 26)" if dark else "rgb(246, 245, 241)")
