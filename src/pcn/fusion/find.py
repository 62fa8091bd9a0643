"""Where a model has batch norms that run in one pass with what follows them: read off its captured graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from pcn.fusion.capture import graphs
from pcn.fusion.found import Found, Search
from pcn.fusion.one_graph import GraphSearch
from pcn.plans.plan import Form


def find_chains(model: nn.Module, example: Any, forms: Mapping[str, Form]) -> Search:
    """Follow every batch norm of a model; only layers whose form is "fused" take projections.

    What counts is what the model does in training and at inference alike.
    """
    captured, reason = graphs(model, example)
    searches = [GraphSearch(model, graph, forms).run() for graph in captured]
    search = Search()
    for each in searches:
        search.left_alone |= each.left_alone
    others = {chain.norm: chain for chain in searches[-1].chains}
    for name in dict.fromkeys(chain.norm for each in searches for chain in each.chains):
        first = next((chain for chain in searches[0].chains if chain.norm == name), None)
        other = others.get(name)
        if reason is not None:
            search.left_alone[name] = reason
        elif first is None or other is None:
            search.left_alone.setdefault(name, "it is not called in training and at inference alike")
        else:
            search.chains.append(_agreed(first, other))
    return search


def _agreed(one: Found, other: Found) -> Found:
    """What is so in both."""
    passed, before = (
        tuple(dict.fromkeys((*getattr(one, name), *getattr(other, name)))) for name in ("passed", "before")
    )
    source = one.source if one.source == other.source else None
    one, other = (replace(each, source=source, passed=passed, before=before) for each in (one, other))
    if one == other:
        return one
    if (one.added, one.relu) == (other.added, other.relu):
        return replace(one, emit=True, readers=(), pooled=False)
    return Found(one.norm, source=source, before=before)
