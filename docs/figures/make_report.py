"""Trains on scikit-learn's digits and photographs the run's report, for the README: docs/figures/report.png.

    python docs/figures/make_report.py

Needs Chromium and Pillow. The picture shows the page on a desktop in light and on a phone in dark.
"""

from __future__ import annotations

import io
import shlex
import sys
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from pcn.cli import main  # noqa: E402
from report.browser import Browser, find_chromium  # noqa: E402

TRAIN = (
    "train --model pcn.demo.network:DigitsNetwork --data digits --optimizer adam --learning-rate 0.003 --batch 32"
    " --epochs 20 --switch-at 6 --rank 95% --device cpu --threads 1"
)
HEIGHT, GAP = 1506, 28


def photograph(browser: Browser, page: Path, *, phone: bool) -> Image.Image:
    """The top of the page, its slider moved to 90%, one point of the picture for one of the layout."""
    browser.visit(page, phone=phone, dark=phone)
    browser.type_into("#value", "90")
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        picture = Image.open(io.BytesIO(browser.screenshot(Path(file.name)))).convert("RGB")
    scale = 2 if phone else 1
    top = picture.crop((0, 0, picture.width, HEIGHT * scale))
    return top.resize((top.width // scale, HEIGHT), Image.Resampling.LANCZOS)


def run() -> None:
    program = find_chromium()
    if program is None:
        raise SystemExit("no Chromium on this machine: install it first")
    with tempfile.TemporaryDirectory() as room:
        if main([*shlex.split(TRAIN), "--out", f"{room}/run"]):
            raise SystemExit("the training failed")
        browser = Browser(program)
        try:
            sides = [photograph(browser, Path(room) / "run" / "report.html", phone=phone) for phone in (False, True)]
        finally:
            browser.close()
    both = Image.new("RGB", (sum(side.width for side in sides) + GAP, HEIGHT), "white")
    both.paste(sides[0], (0, 0))
    both.paste(sides[1], (sides[0].width + GAP, 0))
    both.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(HERE / "report.png", optimize=True)
    print(f"{HERE / 'report.png'}: {(HERE / 'report.png').stat().st_size:,} bytes")


if __name__ == "__main__":
    run()
