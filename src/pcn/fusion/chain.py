"""What is fused around one batch norm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from pcn.fusion.layers import FusedLayer


@dataclass(frozen=True, eq=False)
class Chain:
    """``batch norm [-> + s] [-> ReLU] [-> projection]``: what one pass computes after the statistics.

    Hooks of the modules on the way (``passed``), and of those between the batch norm and a convolution of ours that
    it alone reads (``before``), want tensors.
    """

    added: bool = False
    relu: bool = False
    emit: bool = True  # whether somebody needs the full width as well
    pooled: bool = False  # whether the full width is only averaged, so that nobody keeps it for backward
    # The principal component layers that take the projection, all with the basis of the first.
    readers: tuple[FusedLayer, ...] = field(default=(), repr=False)
    passed: tuple[nn.Module, ...] = field(default=(), repr=False)
    before: tuple[nn.Module, ...] = field(default=(), repr=False)
    place: tuple[nn.Module | None, str] = field(
        default=(None, ""), repr=False
    )  # who holds the batch norm, by which name

    @property
    def projects(self) -> bool:
        return len(self.readers) > 0

    def projects_for(self, reader: FusedLayer) -> bool:
        """Whether the projection is this reader's: the first's always, others' while nobody has loaded a new basis."""
        if not self.projects or reader is self.readers[0]:
            return self.projects
        unmoved = not any(each.use.moved for each in self.readers)
        return unmoved and any(reader is each for each in self.readers)
