"""Print what came out of the comparison and of the search for a planner; ``--write`` brings the documentation up to it.

python benchmarks/peers_report.py
python benchmarks/peers_report.py --write              docs/comparison.md, docs/trials.md, README.md, docs/figures
"""

from __future__ import annotations

import argparse
from pathlib import Path

import planner_search
from peers import RESULTS
from peers.document import comparison_part, made_anew
from peers.report import short_tables
from peers.results import Results
from records import Records


def parts(folder: Path) -> dict[str, str]:
    """What the documentation takes from the results: nothing in the place of those that are not in this folder."""
    results, search = Results(folder), Records(folder / planner_search.RECORDS)
    made: dict[str, str] = {}
    if results.final.path.exists() or results.grid.path.exists():
        made |= {"comparison": comparison_part(results), "short comparison": short_tables(results)}
    if search.path.exists():
        made["search"] = planner_search.table(search.records)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found = parts(options.results)
    if not found:
        raise SystemExit(f"{options.results} holds no results")
    print("\n\n".join(found.values()))
    if options.write:
        from peers.figures import draw

        written = made_anew(found)
        for document, text in written.items():
            document.write_text(text)
        print("\nwritten:", *(document.name for document in written), *draw(Results(options.results)), sep=" ")


if __name__ == "__main__":
    main()
