"""The only code that changes a model: layers are swapped and tensors cut to a plan, all of them or none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pcn.errors import ConfigError, PlanError
from pcn.fusion import unfuse_
from pcn.layers import unwrap
from pcn.memory import Places
from pcn.nn import hand_on_
from pcn.plans.plan import Plan, check_untransformed, get_plan, set_plan_
from pcn.plans.skeleton import sync_sizes_
from pcn.rewriting.bases import Bases
from pcn.rewriting.early_state import loaded_early
from pcn.rewriting.edit import Edit, Swap, reshaping, transforming
from pcn.rewriting.optimizer import follow_
from pcn.rewriting.optimizer_checks import check_holds, check_optimizers, warn_of_forgotten
from pcn.rewriting.replaced import check_hooks, hand_over_
from pcn.running.example import Example
from pcn.running.failures import without_gradients
from pcn.running.optimizers import Optimizers, as_optimizers
from pcn.running.reads import UsesOf
from pcn.running.refusals import check_changeable
from pcn.running.untouched import untouched


def apply_plan_(
    plan: Plan,
    model: nn.Module,
    bases: Bases,
    *,
    example: Example | None = None,
    optimizer: Optimizers = None,
    ema: nn.Module | None = None,
    strict: bool = False,
    quiet: bool = False,
    confirm: Callable[[], None] | None = None,
) -> None:
    """Transform the model, its averaged copy and its optimizers: all or nothing.

    With an ``example`` the model then runs on it, and everything is put back if it fails, or if ``confirm``, which is
    called next, raises. ``quiet`` leaves warnings about optimizers out.
    """
    check_changeable(model, optimizer)
    base, optimizers = unwrap(model), as_optimizers(optimizer)
    _check_parts(base)
    copies = with_average(base, ema)
    with torch.inference_mode(False), torch.no_grad():  # what is made in inference mode could not be trained
        edits = _each(copies, lambda module: transforming(plan, module, bases))
    for edit in edits:
        check_hooks(edit.replaced)
    check_optimizers(optimizers, edits[0].replaced, strict=strict, quiet=quiet)
    check_holds(optimizers, edits[0].replaced, base, strict=strict, quiet=quiet)
    if not quiet:
        warn_of_forgotten(optimizers, edits[0].replaced, base)
    with ExitStack() as undo:
        for module, edit in zip(copies, edits, strict=True):
            undo.callback(commit_(module, edit, plan))
        if example is not None:
            names = [layer.name for layer in plan.transformed]
            _check_runs(base, example, dict(zip([old for old, _ in edits[0].swaps], names, strict=True)))
        for edit in edits:
            hand_over_(edit.replaced)
        if confirm is not None:
            confirm()
        follow_(optimizers, edits[0].replaced)
        undo.pop_all()


def try_plan(
    plan: Plan, model: nn.Module, bases: Bases, *, example: Example | None, optimizer: Optimizers, strict: bool
) -> None:
    """Raise what applying a plan would raise, and warn of nothing, as that will; the model stays as it is."""

    def confirm() -> None:
        raise _TriedError

    with suppress(_TriedError):
        apply_plan_(
            plan, model, bases, example=example, optimizer=optimizer, strict=strict, quiet=True, confirm=confirm
        )


class _TriedError(Exception):
    """All went well, and everything is put back."""


def _check_runs(model: nn.Module, example: Example, replaced: dict[nn.Module, str]) -> None:
    """Run the changed model; an old layer or weight that is used all the same is held somewhere that we cannot see."""
    called: list[str] = []
    kept = Places((tensor, None) for tensor in model.parameters())  # a bias may be the new layer's too
    old_ones = ((tensor, name) for old, name in replaced.items() for tensor in old.parameters(recurse=False))
    owners = Places((tensor, name) for tensor, name in old_ones if not kept.over(tensor))
    used: list[str] = []
    failed: Exception | None = None
    try:
        with untouched(model), ExitStack() as hooks:
            for old, name in replaced.items():
                _watch_(old, partial(called.append, name), hooks)
            hooks.enter_context(UsesOf(owners, used.append))
            example.call(model)
    except Exception as error:  # perhaps because of an old layer, which is the better reason
        failed = error
    if called:
        raise PlanError(
            f"the model still calls the old {called[0]!r}, which it also holds outside its submodules (in a list, "
            "say), so it was put back as it was; hold layers in an nn.ModuleList, or exclude this one"
        ) from failed
    if used:
        raise PlanError(
            f"the model still computes with the old weight or bias of {used[0]!r}, which it holds elsewhere too "
            "(in a list, say), so it was put back as it was; exclude this layer"
        ) from failed
    if failed is not None:
        why = f"{failed}; {needs}" if (needs := without_gradients(failed)) else str(failed)
        raise PlanError(f"the transformed model does not run, so the model was put back as it was: {why}") from failed


def _watch_(old: nn.Module, told: Callable[[], None], stack: ExitStack) -> None:
    """Have a replaced layer tell when it is called; its hooks cannot, as they are its successor's too."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        told()
        return type(old).forward(old, *args, **kwargs)

    old.__dict__["forward"] = forward
    stack.callback(old.__dict__.pop, "forward")


def _each(copies: list[nn.Module], edit: Callable[[nn.Module], Edit]) -> list[Edit]:
    """What will change in the model, and in its averaged copy, which must have the same layers."""
    model, *averages = copies
    edits = [edit(model)]
    try:
        edits += map(edit, averages)
    except PlanError as error:
        raise PlanError(
            f"ema is no copy of the model, or one that has been transformed already: {error}; give the averaged copy "
            "of this very model"
        ) from error
    return edits


def _check_parts(model: nn.Module) -> None:
    """Raise where a part has been transformed by itself: two plans would share a model, and neither could be saved."""
    for name, part in model.named_modules():
        try:
            check_untransformed(part)
        except PlanError as error:
            if not name:  # the plan's own fit says more
                return
            raise PlanError(
                f"the part {name!r} of this model has been transformed by itself, so that no plan would describe the "
                "whole: pcn.fold_ of that part brings its plain layers back, and one plan can then change all; or "
                "transform the other parts by themselves too, and save each"
            ) from error


def with_average(model: nn.Module, ema: nn.Module | None) -> list[nn.Module]:
    """The model, and its averaged copy where there is one."""
    return [model] if ema is None else [model, averaged(ema, model)]


def averaged(ema: nn.Module, model: nn.Module) -> nn.Module:
    """The model inside an averaging wrapper (torch's AveragedModel and timm's both call it ``module``), or the copy."""
    inner = getattr(ema, "module", None)
    whole = unwrap(ema) if isinstance(ema, nn.Module) else None
    if isinstance(inner, nn.Module) and type(whole) is not type(model):
        return unwrap(inner)
    if whole is None:
        raise ConfigError(f"ema is of type {type(ema).__name__}: give the averaged model, or what holds it as .module")
    return whole


def reshape_(
    plan: Plan,
    model: nn.Module,
    *,
    optimizer: Optimizers = None,
    ema: nn.Module | None = None,
    strict: bool = False,
    empty: bool = False,
) -> Callable[[], None]:
    """Give the model the plan's architecture, with random weights in transformed layers; return how to undo it.

    Optimizers get the new parameters, with the state that was saved for these where it was loaded already and without
    any otherwise, and an averaged copy the same architecture: their own saved states fit afterwards. With ``empty`` the
    tensors of transformed layers hold nothing yet.
    """
    check_changeable(model, optimizer)
    base, optimizers = unwrap(model), as_optimizers(optimizer)
    _check_parts(base)
    copies = with_average(base, ema)
    edits = _each(copies, lambda module: reshaping(plan, module, empty=empty))
    for edit in edits:
        check_hooks(edit.replaced)
    check_holds(optimizers, edits[0].replaced, base, strict=strict)
    early = loaded_early(optimizers, edits[0].replaced, strict=strict)
    with ExitStack() as undo:
        for module, edit in zip(copies, edits, strict=True):
            undo.callback(commit_(module, edit, plan))
        for edit in edits:
            hand_over_(edit.replaced, gradients=False)
        follow_(optimizers, edits[0].replaced, carried=())
        for optimizer, change, state in early:
            optimizer.state[change.new] = state
        return undo.pop_all().close


def commit_(model: nn.Module, edit: Edit, plan: Plan | None) -> Callable[[], None]:
    """Put new layers and tensors in, wherever the old ones are held; return how to undo it all."""
    with ExitStack() as undo:
        undo.callback(unfuse_(model))  # what was fused speaks of layers that go
        _swap_layers_(model, edit.swaps, undo)
        _swap_tensors_(model, edit.cut, undo)
        undo.callback(set_plan_, model, get_plan(model))
        set_plan_(model, plan)
        return undo.pop_all().close


def _swap_layers_(model: nn.Module, swaps: list[Swap], undo: ExitStack) -> None:
    replaced = {id(old): new for old, new in swaps}
    for old, new in swaps:
        hand_on_(new, old)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and id(child) in replaced:
                undo.callback(parent._modules.__setitem__, name, child)
                parent._modules[name] = replaced[id(child)]


def _swap_tensors_(model: nn.Module, cut: dict[int, tuple[Tensor, Tensor]], undo: ExitStack) -> None:
    for module in list(model.modules()):
        sizes = {key: value for key, value in module.__dict__.items() if isinstance(value, int)}
        touched = False
        for held in (module._parameters, module._buffers):
            for name, tensor in list(held.items()):
                if tensor is not None and id(tensor) in cut:
                    undo.callback(held.__setitem__, name, tensor)  # type: ignore[arg-type]
                    held[name] = cut[id(tensor)][1]  # type: ignore[assignment]
                    touched = True
        if touched:
            undo.callback(module.__dict__.update, sizes)
            sync_sizes_(module)
