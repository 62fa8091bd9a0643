"""What a search for chains of calls around batch norms finds in a model."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Found:
    """One batch norm and what follows it, by name; see :class:`pcn.fusion.chain.Chain`."""

    norm: str
    added: bool = False
    relu: bool = False
    emit: bool = True
    readers: tuple[str, ...] = ()
    pooled: bool = False
    beside: bool = False  # layers with other bases read what is written; folded, they keep it
    source: str | None = None  # the convolution whose output nobody else reads
    passed: tuple[str, ...] = field(default=(), repr=False)
    before: tuple[str, ...] = field(default=(), repr=False)


@dataclass
class Search:
    """What was found in a model, and why the other batch norms and layers stay as they are."""

    chains: list[Found] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)
