"""Pictures for the README and the docs: a report in a browser, the terminal as a vector drawing.

    python benchmarks/tools/screenshots.py        needs chromium or chrome; two minutes on two cores

The data are the drawn fruit of the demo, and so are the search and the comparison, so that anybody
can make the same pictures.
"""

from __future__ import annotations

import argparse
import io
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console

from dada.policy import Policy
from dada.report import write_report
from dada.terminal import doctor, policy_table

ROOT = Path(__file__).parents[2]
IMAGES, EXAMPLE = ROOT / "docs" / "images", ROOT / "examples" / "demo.py"
LIMIT = 400_000  # bytes of a picture that is committed


def dada(*arguments: str, cwd: Path) -> None:
    print(f"$ dada {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "dada", *arguments]
    subprocess.run(command, check=True, cwd=cwd, stdout=subprocess.DEVNULL)


def find_browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    raise ValueError("no chromium or chrome found; on Debian: apt install chromium")


def photograph(
    browser: str, page: Path, target: Path, width: int, height: int, *, dark: bool = False
) -> None:
    """The top of a page as a PNG of few colours; below 500 pixels inside a frame of that width."""
    with tempfile.TemporaryDirectory() as scratch:
        address = page.resolve().as_uri()
        if width < 500:  # no window is narrower than that
            frame = Path(scratch) / "frame.html"
            style = f"width:{width}px;height:{height}px;border:0"
            frame.write_text(f'<body style="margin:0"><iframe src="{address}" style="{style}">')
            address = frame.as_uri()
        shot = Path(scratch) / "shot.png"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += ["--allow-file-access-from-files", f"--user-data-dir={scratch}/profile"]
        options += [f"--window-size={max(500, width)},{height}", f"--screenshot={shot}"]
        options += ["--blink-settings=preferredColorScheme=0"] if dark else []
        subprocess.run([browser, *options, address], check=True, capture_output=True, timeout=120)
        with Image.open(shot) as opened:
            picture = opened.convert("RGB").crop((0, 0, width, height))
    few_colours(picture).save(target, optimize=True)
    check(target)


def few_colours(picture: Image.Image) -> Image.Image:
    """256 colours: the page's own exactly, which fill most of it, the photographs' nearly."""
    counted = sorted(picture.getcolors(picture.width * picture.height) or [], key=lambda c: -c[0])
    own = [channel for _, colour in counted[:32] for channel in colour]
    rest = picture.quantize(224, method=Image.Quantize.MEDIANCUT).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*own, *rest][: 3 * 256])
    return picture.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)


def check(target: Path) -> None:
    size = target.stat().st_size
    print(f"wrote {target.name}, {size / 1000:.0f} kB")
    if size > LIMIT:
        raise ValueError(f"{target} has {size} bytes, more than {LIMIT}; show less of the page")


def draw_terminals(policy: Policy, target: Path) -> None:
    """`dada show` and `dada doctor` as SVG, as a terminal of 92 columns shows them."""
    for name, title in (("show", "dada show runs/fruit"), ("doctor", "dada doctor")):
        console = Console(force_terminal=True, width=92, record=True, file=io.StringIO())
        if name == "show":
            policy_table.print_policy(policy, console, rows=6)
        else:
            # Where this checkout lies and what it runs on is nobody's concern.
            shown = [f for f in doctor.examine() if f.name not in ("dada", "terminal")]
            doctor.print_findings(shown, console)
        file = target / f"terminal-{name}.svg"
        drawing = console.export_svg(title=title)
        # A picture fetches nothing: the reader's own monospace font will do.
        file.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL))
        check(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder for the pictures")
    target = parser.parse_args().out.resolve()
    browser = find_browser()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        demo = runpy.run_path(str(EXAMPLE))
        dada("search", "fruit", *demo["SEARCH"], "--out", "runs/fruit", cwd=here)
        rivals = ("--policies", "runs/fruit,uniform,none", "--seeds", "5")
        compared = ("--out", "runs/compared")
        dada("compare", "fruit", *rivals, *demo["COMPARE"], *compared, cwd=here)
        page = write_report(here / "runs" / "fruit", here / "runs" / "compared")
        photograph(browser, page, target / "report.png", 1200, 1500)
        photograph(browser, page, target / "report-dark.png", 1200, 1500, dark=True)
        photograph(browser, page, target / "report-phone.png", 390, 1400)
        draw_terminals(Policy.load(here / "runs" / "fruit"), target)


if __name__ == "__main__":
    main()
