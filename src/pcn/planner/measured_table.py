"""Printing measurements: what every layer takes as it is and at the ranks that were tried."""

from __future__ import annotations

from pcn.costs.usage import MIB, MS, Usage, shown
from pcn.planner.measured import Measured
from pcn.tables import align

HEADER = ("", "rank", "ms", "MiB", "weights", "gradients", "optimizer", "activations")
TEXTS = (0,)  # the column that is a text


def measured_table(measured: Measured) -> str:
    """Return the measurements as an aligned table: the model, what no choice changes, then the layers.

    >>> from pcn.planner.measured import LayerUsage
    >>> print(Measured(Usage(500_000), {"fc": LayerUsage(Usage(2_000_000), {(8, None): Usage(750_000)})}))
               rank     ms  MiB  weights  gradients  optimizer  activations
    the model        2.500  0.0      0.0        0.0        0.0          0.0
    the rest         0.500  0.0      0.0        0.0        0.0          0.0
    fc          all  2.000  0.0      0.0        0.0        0.0          0.0
    fc            8  0.750  0.0      0.0        0.0        0.0          0.0
    """
    rows = [HEADER, _row("the model", "", measured.whole), _row("the rest", "", measured.rest)]
    for name, layer in measured.layers.items():
        rows.append(_row(name, "all", layer.whole))
        rows += [
            _row(name, ", ".join([f"{rank or 'all'}", *([] if outputs is None else [f"{outputs} outputs"])]), usage)
            for (rank, outputs), usage in layer.tried.items()
        ]
    return "\n".join([*([measured.on] if measured.on else []), *align(rows, TEXTS)])


def _row(name: str, rank: str, usage: Usage) -> tuple[str, ...]:
    parts = (usage.weights_bytes, usage.gradients_bytes, usage.optimizer_bytes, usage.activations_bytes)
    sizes = (shown(size / MIB) for size in (usage.memory_bytes, *parts))
    return name, rank, f"{usage.time_ns / MS:,.3f}", *sizes
