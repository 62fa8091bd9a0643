"""Running what a page shows: its Python and shell blocks in their order, in one namespace and one folder.

A block below `<!-- not run: WHY -->` is only shown. A `text` block right below one that ran is what it prints; after
`text about` the numbers may differ, and `text raises` is the error that it ends with.

python tests/docs/pages.py docs/quickstart.md   (writes what was printed into the page)
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pcn.cli import main

FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<info>[^\n`]*)\n(?P<body>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL
)
RUN = ("python", "sh")
NUMBER = re.compile(r"\d[\d,.]*(e-?\d+)?")


@dataclass
class Block:
    """One fenced block of a page, and where its body stands."""

    info: str
    body: str
    span: tuple[int, int]
    why_not: str | None
    after: int  # where the block ends

    @property
    def runs(self) -> bool:
        return self.info in RUN and self.why_not is None


@dataclass
class Shown:
    """What a page says that a block prints, and what it printed."""

    claim: Block
    printed: str

    @property
    def holds(self) -> bool:
        same = _words if self.claim.info == "text about" else str.strip
        return same(self.claim.body) == same(self.printed)


def blocks(text: str) -> list[Block]:
    return [Block(m["info"].strip(), m["body"], m.span("body"), m["why"], m.end()) for m in FENCE.finditer(text)]


def run_page(page: Path, folder: Path) -> list[Shown]:
    """Run a page's blocks inside a folder; return what it claims that they print beside what they printed."""
    text = page.read_text(encoding="utf-8")
    found = blocks(text)
    module = sys.modules[f"page_{page.stem}"] = ModuleType(f"page_{page.stem}")  # where its classes say they are from
    shown = []
    with contextlib.chdir(folder):
        for block, following in zip(found, [*found[1:], None], strict=True):
            claim = following if following and _is_claim(text, block, following) else None
            if block.runs:
                printed = _run(block, vars(module), page, raises=claim is not None and claim.info == "text raises")
                if claim is not None:
                    shown.append(Shown(claim, printed))
    return shown


def _is_claim(text: str, block: Block, following: Block) -> bool:
    is_text = following.info.split(" ")[0] == "text"
    return is_text and not text[block.after : following.span[0]].partition("```")[0].strip()


def _run(block: Block, namespace: dict[str, Any], page: Path, raises: bool) -> str:
    if block.info == "sh":
        return _run_shell(block.body)
    line = page.read_text(encoding="utf-8")[: block.span[0]].count("\n")
    code = compile("\n" * line + block.body, str(page), "exec", dont_inherit=True)  # a traceback names the page's line
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(code, namespace)
        except Exception as error:
            if not raises:
                raise
            return f"{type(error).__name__}: {error}\n"
    if raises:
        raise AssertionError(f"{page}, line {line}: nothing was raised")
    return printed.getvalue()


def _run_shell(script: str) -> str:
    lines = script.replace("\\\n", " ").splitlines()
    if all(re.fullmatch(r"pcn [^|<>&;$`]*", line) for line in lines):
        return "".join(_run_pcn(line) for line in lines)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if run.returncode:
        raise AssertionError(f"{script}ended with {run.returncode}:\n{run.stdout}{run.stderr}")
    return run.stdout


def _run_pcn(line: str) -> str:
    """Run our own command in this process: importing torch for each one would take longer than all of them."""
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("default")
        code = main(shlex.split(line)[1:])
    if code:
        raise AssertionError(f"{line}\nended with {code}:\n{printed.getvalue()}{said.getvalue()}")
    return printed.getvalue()


def _words(text: str) -> list[str]:
    return NUMBER.sub("#", text).split()


def refresh(page: Path) -> None:
    """Write what the blocks print into the page."""
    with tempfile.TemporaryDirectory() as folder:
        shown = run_page(page.resolve(), Path(folder))
    text = page.read_text(encoding="utf-8")
    for each in reversed(shown):
        start, end = each.claim.span
        kept = "\n".join(line.rstrip() for line in each.printed.strip("\n").splitlines())
        text = f"{text[:start]}{kept}\n{text[end:]}"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        refresh(Path(name))
