"""The fastest form of each principal component layer: every one is run on this device with the layer's own sizes."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pcn.errors import ConfigError
from pcn.example import Example, device_of
from pcn.fusion.find import Found, Search, find_chains
from pcn.fusion.fuse import FORMS, attach_, layers_with_forms, unfuse_
from pcn.fusion.layers import Form
from pcn.layers import layout_of, unwrap
from pcn.nn import PCModule
from pcn.untouched import untouched

REPEATS = 5


def choose_forms(model: nn.Module, example: Any, *, among: Sequence[Form] = FORMS) -> dict[str, Form]:
    """Time a training step of each layer in every form of ``among``, and return the fastest, by name.

    Autocast counts as it is where this is called. Layers of the same sizes are timed once.
    """
    if not among or not set(among) <= set(FORMS):
        raise ConfigError(f"among={among!r}: give at least one of {', '.join(FORMS)}")
    base = unwrap(model)
    unfuse_(base)
    given = example if isinstance(example, Example) else Example.of(example, device=device_of(base))
    layers = layers_with_forms(base)
    search = find_chains(base, given, dict.fromkeys(layers, "fused"))
    norm_of = {reader: chain.norm for chain in search.chains for reader in chain.readers}
    inputs = _inputs(base, given, layers)
    found: dict[str, Form] = {}
    known: dict[str, Form] = {}
    for name, layer in layers.items():
        if name not in inputs:
            continue
        sizes = f"{layer} {tuple(inputs[name].shape)} {inputs[name].dtype} {name in norm_of}"
        if sizes not in known:
            norm = base.get_submodule(norm_of[name]) if name in norm_of else None
            known[sizes] = _fastest(layer, norm, inputs[name], among)
        found[name] = known[sizes]
    for chain in search.chains:  # one reader at the full width, and a projection for the others saves little
        found |= dict.fromkeys(chain.readers, found[chain.readers[0]]) if chain.readers else {}
    return found


def _inputs(model: nn.Module, example: Example, layers: dict[str, PCModule]) -> dict[str, Tensor]:
    """An empty tensor like the one that each layer reads."""
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, keywords: Any) -> None:
            seen[name] = torch.empty_like(next(iter((*arguments, *keywords.values()))))

        return hook

    hooks = [layer.register_forward_pre_hook(note(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        with untouched(model, eval_mode=True):
            example.call(model)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _fastest(layer: PCModule, norm: nn.Module | None, like: Tensor, among: Sequence[Form]) -> Form:
    """The fastest form of one layer, behind its batch norm and ReLU where it has them."""
    forms = [form for form in among if form != "fused" or norm is not None] or ["factored"]
    if len(forms) == 1:
        return forms[0]
    return min(forms, key=lambda form: time_s(_part(layer, norm, form), like))


def _part(layer: PCModule, norm: nn.Module | None, form: Form) -> nn.Module:
    copied = copy.deepcopy(layer)
    if norm is None:
        part = nn.Sequential(copied)
        attach_(part, Search(), {"0": form})
    else:
        part = nn.Sequential(copy.deepcopy(norm), nn.ReLU(), copied)
        readers = ("2",) if form == "fused" else ()
        attach_(part, Search([Found("0", relu=True, emit=form != "fused", readers=readers)]), {"2": form})
    return part.train()


def time_s(part: nn.Module, like: Tensor) -> float:
    """The shortest of a few steps forward and back on random numbers; on a GPU without the time of launching."""
    inputs = torch.randn_like(like, memory_format=layout_of(like)).requires_grad_()
    coming = torch.randn_like(part(inputs))

    def step() -> None:
        torch.clear_autocast_cache()  # each casts its weights itself: copies of an earlier one stay with its stream
        torch.autograd.grad(part(inputs), [inputs, *part.parameters()], coming)

    if like.device.type == "cuda":
        return _replayed_s(step)
    step()
    return min(_seconds(step) for _ in range(REPEATS))


def _seconds(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _replayed_s(step: Callable[[], None]) -> float:
    """The shortest of a few replays of a step."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
        with torch.cuda.graph(graph, stream=side):
            step()
        for _ in range(REPEATS):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1000)
    torch.cuda.current_stream().wait_stream(side)
    return float(min(times))
