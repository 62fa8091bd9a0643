"""Channel bookkeeping: every index of a dimension is an atom; atoms that go or stay together are coupled."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

Label = Tensor | None  # one atom per index of a dimension, or None where the size is fixed


@dataclass(frozen=True)
class Carried:
    """What a tensor carries: its shape and, per dimension, the atoms whose removal would shrink it.

    ``source`` names the parameter or buffer that the tensor is.
    """

    shape: tuple[int, ...]
    labels: tuple[Label, ...]
    source: str | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def mapped(self, classes: Tensor) -> Carried:
        """The same with the class of every atom in its place."""
        return replace(self, labels=tuple(None if label is None else classes[label] for label in self.labels))

    @classmethod
    def fixed(cls, shape: tuple[int, ...]) -> Carried:
        """A tensor none of whose sizes may change."""
        return cls(tuple(shape), (None,) * len(shape))


class Atoms:
    """Hands out atoms, and collects which are coupled and which must stay."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.when = ""  # said behind every reason from then on
        self._edges: list[tuple[Tensor, Tensor]] = []
        self._pins: list[tuple[Tensor, str]] = []

    def fresh(self, size: int) -> Tensor:
        self.count += size
        return torch.arange(self.count - size, self.count)

    def couple(self, first: Tensor, second: Tensor) -> None:
        """Couple atoms pairwise (the shapes broadcast)."""
        first, second = torch.broadcast_tensors(first, second)
        self._edges.append((first.reshape(-1), second.reshape(-1)))

    def pin(self, label: Label, reason: str) -> None:
        """Say that these atoms must stay, and why."""
        if label is not None:
            self._pins.append((label.reshape(-1), f"{reason}{self.when}"))

    def pin_all(self, value: Carried, reason: str) -> None:
        for label in value.labels:
            self.pin(label, reason)

    def classes(self) -> Tensor:
        """Return the class of every atom: connected components, numbered by their smallest atom."""
        root = torch.arange(self.count)
        if not self._edges:
            return root
        first = torch.cat([a for a, _ in self._edges])
        second = torch.cat([b for _, b in self._edges])
        while True:
            a, b = root[first], root[second]
            if torch.equal(a, b):
                return root
            low = torch.minimum(a, b)
            # Hook both roots onto the smaller one, then let every atom jump to its root.
            root = root.scatter_reduce(0, a, low, "amin").scatter_reduce(0, b, low, "amin")
            while not torch.equal(jumped := root[root], root):
                root = jumped

    def pinned(self, classes: Tensor) -> dict[int, str]:
        """Return the first reason given for each class that must stay."""
        reasons: dict[int, str] = {}
        for label, reason in self._pins:
            for cls in classes[label].unique().tolist():
                reasons.setdefault(cls, reason)
        return reasons
