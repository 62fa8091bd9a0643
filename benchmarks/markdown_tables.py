"""Tables as they stand in the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; numbers, which stand behind the first column, are set to the right.

    >>> print(markdown(["network", "ms"], [["conv4", "2.35"]]))
    | network | ms |
    | --- | ---: |
    | conv4 | 2.35 |
    """
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
