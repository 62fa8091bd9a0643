"""Batch norm, ReLU and projection of a model run in one pass, in place.

Modules keep their places, parameters, buffers and names: only their class becomes a subclass of what it was, so that
optimizers, ``state_dict``, ``copy.deepcopy``, DDP and ``torch.compile`` see the model that they know. Between modules a
fused value travels as a :class:`~pcn.fusion.pending.Pending` only where the graphs of training and of inference both
show that nobody but fused modules reads it, and no hook looks; everybody else is given a tensor, computed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import nn

from pcn.errors import ConfigError, suggest
from pcn.fusion.chain import Chain
from pcn.fusion.expansion import Expansion
from pcn.fusion.find import find_chains
from pcn.fusion.found import Found, Search
from pcn.fusion.hooks import hooked
from pcn.fusion.layers import LAYERS, FusedLayer, Use, forms_of
from pcn.fusion.norms import NORMS, FusedNorm
from pcn.fusion.stems import STEMS, HandingConv2d
from pcn.fusion.switch import fuses
from pcn.layers import unwrap
from pcn.nn import PCModule
from pcn.plans.plan import FORMS, Form
from pcn.running.example import Example
from pcn.running.refusals import check_whole


@dataclass(frozen=True)
class Fusion:
    """What :func:`fuse_` did: the chains, the form of every principal component layer, and what was left alone."""

    chains: tuple[Found, ...]
    forms: dict[str, Form]
    left_alone: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{chain.norm}: {_described(chain)}" for chain in self.chains]
        lines += [f"{name}: {form}" for name, form in self.forms.items() if form != "fused"]
        return "\n".join([*lines, *(f"{name}: left alone, {why}" for name, why in self.left_alone.items())])


def fuse_(model: nn.Module, example: Any, *, forms: Mapping[str, Form] | Form = "fused", norms: bool = True) -> Fusion:
    """Have a model's batch norms run in one pass with what follows them; compile it afterwards, not before.

    Convolutions that only a batch norm reads hand their output over: principal component layers, and ordinary ones of
    few channels. ``example`` is a batch as :func:`pcn.analyze` takes it. ``forms`` says how principal component layers
    run: "fused" with the batch norm before them where that is possible, "factored" (a narrow product, then the layer)
    or "folded" (the basis multiplied out at each step); a mapping from names gives each its own, and "fused" where it
    is silent. Without ``norms`` nothing changes but layers that are folded: batch norms stay as they are, and other
    layers run factored, by the code that they have.
    Call it under the autocast that the model will run in, and again after surgery, which takes it back, and after
    loading other bases, which are then no longer shared.

    >>> from pcn.nn import PCConv2d
    >>> import torch
    >>> model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), PCConv2d(16, 8, 3, rank=4))
    >>> print(fuse_(model, torch.ones(2, 3, 9, 9)))
    1: batch norm, ReLU, projected for '3'
    """
    base = unwrap(model)
    check_whole(base)
    unfuse_(base)
    given = Example.for_model(base, example)
    chosen = _forms(base, forms)
    search = find_chains(base, given, chosen) if norms else Search()
    attach_(base, search, {name: form for name, form in chosen.items() if norms or form == "folded"})
    fused = {name for chain in search.chains for name in chain.readers}
    held = {name: "factored" if form == "fused" and name not in fused else form for name, form in chosen.items()}
    return Fusion(tuple(search.chains), held, search.left_alone)


def attach_(model: nn.Module, search: Search, forms: Mapping[str, Form]) -> None:
    """Turn modules into their fused subclasses."""
    layers = {name: _become(model.get_submodule(name), LAYERS) for name in forms}
    norms = {chain.norm: _become(model.get_submodule(chain.norm), NORMS) for chain in search.chains}
    for chain in search.chains:
        readers = tuple(layers[name] for name in chain.readers)
        passed, before = (tuple(map(model.get_submodule, names)) for names in (chain.passed, chain.before))
        holder, _, child = chain.norm.rpartition(".")
        place = model.get_submodule(holder), child
        follows = chain.added, chain.relu, chain.emit, chain.pooled
        norms[chain.norm].chain = Chain(*follows, readers, passed, before, place)
    reading = {chain.source: norms[chain.norm] for chain in search.chains if chain.source is not None}
    for name, layer in layers.items():
        form = forms[name]
        ours = fuses(layer.weight) and (form == "folded" or "fused" in forms_of(layer))  # or its own code runs
        expansion = Expansion.of(layer, dense=form == "folded") if ours else None
        layer.use = Use(form, norm=reading.get(name), expansion=expansion)
    for name in reading.keys() - layers.keys():
        _become(model.get_submodule(name), STEMS).use = Use(norm=reading[name])


def unfuse_(model: nn.Module) -> Callable[[], None]:
    """Give every module its own class back; return how to undo that."""
    stock: dict[type, Any] = {fused: stock for stock, fused in {**NORMS, **LAYERS, **STEMS}.items()}
    with ExitStack() as undo:
        for module in unwrap(model).modules():
            if isinstance(module, FusedNorm | FusedLayer | HandingConv2d):
                for name in {"chain", "use"} & vars(module).keys():
                    undo.callback(setattr, module, name, vars(module).pop(name))
                undo.callback(setattr, module, "__class__", type(module))
                module.__class__ = stock[type(module)]
        return undo.pop_all().close


def _become(module: nn.Module, classes: Mapping[type[nn.Module], type[nn.Module]]) -> Any:
    module.__class__ = classes[type(module)]
    return module


def _forms(model: nn.Module, given: Mapping[str, Form] | Form) -> dict[str, Form]:
    """The form of every layer that can have one."""
    if not isinstance(given, str | Mapping):
        raise ConfigError(f"forms={given!r}: give one of {', '.join(FORMS)}, or a mapping from layers' names to these")
    known = [name for name, module in model.named_modules() if isinstance(module, PCModule)]
    asked = dict.fromkeys(known, given) if isinstance(given, str) else dict(given)
    for name, form in asked.items():
        if name not in known:
            raise ConfigError(f"{name!r} is not a principal component layer of this model{suggest(name, known)}")
        if form not in FORMS:
            raise ConfigError(f"the form {form!r} of {name!r} is unknown: choose one of {', '.join(FORMS)}")
    return {name: asked.get(name, "fused") for name in layers_with_forms(model)}


def layers_with_forms(model: nn.Module) -> dict[str, PCModule]:
    """The layers that can run in more than their own way: plain ones, without hooks."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, PCModule)}
    return {
        name: layer for name, layer in layers.items() if type(layer) in LAYERS and forms_of(layer) and not hooked(layer)
    }


def _described(chain: Found) -> str:
    said = "batch norm" + (", sum" if chain.added else "") + (", ReLU" if chain.relu else "")
    if chain.readers:
        said += f", projected for {' and '.join(map(repr, chain.readers))}"
        said += " and written" if chain.emit else ""
    return said
