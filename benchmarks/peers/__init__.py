"""The comparison with other ways to a small network: what is compared, how each is trained, and what came out."""

import sys
from argparse import ArgumentTypeError
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
RESULTS = BENCHMARKS / "results"

# Results are kept, and the paper's recipes written, where the experiments have theirs.
for place in (BENCHMARKS, BENCHMARKS.parent / "experiments"):
    if str(place) not in sys.path:
        sys.path.append(str(place))


def folder(path: str) -> Path:
    """A folder that was given, by one name however it is spelt: a run is taken up again only with the same settings."""
    if Path(path).is_file():
        raise ArgumentTypeError(f"{path} is a file: give a folder")
    return Path(path).resolve()
