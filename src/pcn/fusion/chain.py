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

    ``readers`` are the principal component layers that take the projection: all with the basis of the first. ``emit``
    says that somebody needs the full width as well, ``pooled`` that it is only averaged, so that nobody keeps it for
    backward. ``passed`` are the modules on the way, whose hooks want tensors,
    and ``before`` those between the batch norm and a convolution of ours that it alone reads. ``place`` is the batch
    norm's: the module that holds it, and its name there.
    """

    added: bool = False
    relu: bool = False
    emit: bool = True
    pooled: bool = False
    readers: tuple[FusedLayer, ...] = field(default=(), repr=False)
    passed: tuple[nn.Module, ...] = field(default=(), repr=False)
    before: tuple[nn.Module, ...] = field(default=(), repr=False)
    place: tuple[nn.Module | None, str] = field(default=(None, ""), repr=False)

    @property
    def projects(self) -> bool:
        return len(self.readers) > 0

    def projects_for(self, reader: FusedLayer) -> bool:
        """Whether the projection is this reader's: the first's always, others' while nobody has loaded a new basis."""
        if not self.projects or reader is self.readers[0]:
            return self.projects
        unmoved = not any(each.use.moved for each in self.readers)
        return unmoved and any(reader is each for each in self.readers)
