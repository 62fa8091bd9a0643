"""What must work right after `pip install pcn`, with nothing else there; run by `make package` in an empty environment.

python tests/package/smoke.py README.md src/pcn
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

AFTERWARDS = """
pcn.save(model, "small")
pcn.load(torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)), "small")
"""


def check(readme: Path, source: Path, folder: Path) -> None:
    """Stop with what is wrong: where pcn comes from, which files it has, README's first example, two commands."""
    installed = Path(run(folder, "python", "-c", "import pcn; print(pcn.__file__)").strip()).parent
    if not installed.is_relative_to(sys.prefix):
        sys.exit(f"pcn was imported from {installed}, not from the environment {sys.prefix}")
    if missing := {"py.typed", *files(source)} - files(installed):
        sys.exit(f"not in the package: {', '.join(sorted(missing))}")
    example = re.search(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), flags=re.DOTALL)
    if example is None:
        sys.exit(f"{readme} shows no example")
    run(folder, "python", "-W", "error", "-c", example[1] + AFTERWARDS)
    if "counts" not in run(folder, "pcn", "--help"):
        sys.exit("`pcn --help` does not name its commands")
    if "4,331,978" not in run(folder, "pcn", "counts"):
        sys.exit("`pcn counts` does not count WideResNet-20 as the paper does")
    sys.stdout.write(f"{installed}: the files, README's example, pcn --help and pcn counts are fine\n")


def run(folder: Path, *command: str) -> str:
    """Run a command away from the repository, with this environment's own programs."""
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    return subprocess.run(command, cwd=folder, env=path, check=True, text=True, stdout=subprocess.PIPE).stdout


def files(package: Path) -> set[str]:
    return {str(f.relative_to(package)) for f in package.rglob("*") if f.is_file() and "__pycache__" not in f.parts}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        check(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), Path(scratch))
