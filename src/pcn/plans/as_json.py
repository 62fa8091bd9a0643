"""A plan as JSON and back: only known fields with possible values get in."""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
import typing
from typing import Any

from pcn.costs.usage import Expected, Usage
from pcn.errors import FileError
from pcn.layers import LAYER_TYPES
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import FORMS, Cut, Form, Plan

FORMAT = "pcn-plan"
VERSION = 1
REQUIRED = tuple(f.name for f in dataclasses.fields(LayerPlan) if f.default is dataclasses.MISSING)


def dumps(plan: Plan) -> str:
    """Return the plan as JSON text that :func:`loads` reads back as an equal plan."""
    layers = [_without_defaults(layer) for layer in plan.layers.values()]
    slices = {
        name: {str(dim): {"size": cut.size, "kept": list(cut.kept)} for dim, cut in dims.items()}
        for name, dims in plan.slices.items()
    }
    head = {"format": FORMAT, "version": VERSION}
    forms = {"forms": plan.forms} if plan.forms else {}
    usage = {} if plan.usage is None else {"usage": dataclasses.asdict(plan.usage)}
    unspent = {} if plan.unspent is None else {"unspent": plan.unspent}
    whole = {"whole": plan.whole} if plan.whole else {}
    known = {"layers": layers, "slices": slices, "left_alone": plan.left_alone}
    return json.dumps({**head, **known, **usage, **forms, **unspent, **whole})


def _without_defaults(layer: LayerPlan) -> dict[str, Any]:
    defaults = {f.name: f.default for f in dataclasses.fields(LayerPlan)}
    return {key: value for key, value in dataclasses.asdict(layer).items() if value != defaults[key]}


def loads(text: str) -> Plan:
    """Read a plan, or raise :class:`FileError` that says what is wrong with it."""
    if not isinstance(text, str | bytes | bytearray):
        raise FileError(f"the plan is of type {type(text).__name__}: give the text that Plan.to_json wrote")
    try:
        data = json.loads(text, object_pairs_hook=_no_key_twice)
    except (ValueError, RecursionError) as error:
        raise FileError(f"the plan is not JSON: {error}; take plan.json from a folder that pcn.save wrote") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise FileError(f"this is not a plan: its format is not {FORMAT!r}; give the text that Plan.to_json wrote")
    if data.get("version") != VERSION or type(data["version"]) is not int:
        found = reprlib.repr(data.get("version"))
        raise FileError(f"the plan has version {found}, this library reads {VERSION}; use the one that wrote it")
    required = {"format", "version", "layers", "slices", "left_alone"}
    _check_keys(data, {*required, "usage", "forms", "unspent", "whole"}, "the plan", required)
    layers = [_layer(_typed(item, dict, "a layer of the plan")) for item in _typed(data["layers"], list, "layers")]
    if len({layer.name for layer in layers}) != len(layers):
        raise FileError("the plan names a layer twice")
    named = {layer.name: layer for layer in layers}
    usage, forms = _usage(data.get("usage")), _forms(data.get("forms", {}), named)
    unspent = _typed(data["unspent"], str, "the plan's unspent") if "unspent" in data else None
    whole = _before_and_after(data.get("whole", {}))
    plan = Plan(named, _slices(data["slices"]), _reasons(data["left_alone"]), usage, forms, unspent, whole)
    for layer in layers:
        _check_widths(layer, plan)
    return plan


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _typed(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:
        raise FileError(f"{what}: {reprlib.repr(value)} is not a {kind.__name__}")
    return value


def _check_keys(data: dict[str, Any], known: set[str], what: str, required: set[str] | None = None) -> None:
    unknown = sorted(data.keys() - known)
    missing = sorted((known if required is None else required) - data.keys())
    if unknown or missing:
        wrong = f"has an unknown field {reprlib.repr(unknown[0])}" if unknown else f"lacks {', '.join(missing)}"
        raise FileError(f"{what} {wrong}")


def _layer(item: dict[str, Any]) -> LayerPlan:
    types = typing.get_type_hints(LayerPlan)
    what = f"layer {reprlib.repr(item.get('name'))} of the plan"
    _check_keys(item, set(types), what, required=set(REQUIRED))
    for key, value in item.items():
        if not _fits(value, types[key]):
            raise FileError(f"{what}: {key} cannot be {reprlib.repr(value)}")
    values: dict[str, Any] = {key: tuple(value) if key == "kernel" else value for key, value in item.items()}
    layer = LayerPlan(**values)
    if not _is_possible(layer):
        raise FileError(f"{what} has impossible sizes or an unknown kind {reprlib.repr(layer.kind)}")
    return layer


def _fits(value: Any, expected: Any) -> bool:
    """Say whether a JSON value has a field's type."""
    if typing.get_origin(expected) is typing.Literal:
        return value in typing.get_args(expected)
    if typing.get_origin(expected) is tuple:
        return type(value) is list and all(type(size) is int and size > 0 for size in value)
    if options := typing.get_args(expected):
        return any(value is None if option is type(None) else _fits(value, option) for option in options)
    return type(value) is expected or (expected is float and type(value) is int)


def _is_possible(layer: LayerPlan) -> bool:
    sizes = (layer.in_features, layer.out_features, layer.groups, layer.kept_inputs, layer.kept_outputs, layer.stride)
    if layer.kind not in LAYER_TYPES or min(sizes) < 1 or len(layer.kernel) != LAYER_TYPES[layer.kind].spatial:
        return False
    fits = layer.kept_inputs <= layer.in_features and layer.kept_outputs <= layer.out_features
    divides = layer.in_features % layer.groups == 0 and layer.out_features % layer.groups == 0
    ranks = layer.rank is None or 1 <= layer.rank <= layer.in_features // layer.groups
    expanded = layer.output_rank is None or 1 <= layer.output_rank <= layer.kept_outputs // layer.groups
    patterned = layer.kernel_rank is None or (layer.rank is not None and 1 <= layer.kernel_rank <= layer.taps)
    positions = (layer.in_positions, layer.out_positions)
    counted = all(each is None or 0 <= each < math.inf for each in positions)
    return fits and divides and ranks and expanded and patterned and counted and 0 <= layer.precondition <= 1


def _slices(data: Any) -> dict[str, dict[int, Cut]]:
    slices: dict[str, dict[int, Cut]] = {}
    for name, dims in _typed(data, dict, "the plan's slices").items():
        what = f"the plan's slices of {reprlib.repr(name)}"
        for dim, cut in _typed(dims, dict, what).items():
            if not (len(dim) == 1 and dim in "0123456789"):
                raise FileError(f"{what}: {reprlib.repr(dim)} is not a dimension")
            _check_keys(_typed(cut, dict, what), {"size", "kept"}, what)
            slices.setdefault(name, {})[int(dim)] = _cut(cut["size"], _typed(cut["kept"], list, what), what)
    return slices


def _cut(size: Any, kept: list[Any], what: str) -> Cut:
    whole = type(size) is int and all(type(index) is int for index in kept)
    if not whole or not kept or kept[0] < 0 or kept[-1] >= size or kept != sorted(set(kept)):
        raise FileError(f"{what} must be ascending indices below the size")
    return Cut(size, tuple(kept))


def _forms(data: Any, layers: dict[str, LayerPlan]) -> dict[str, dict[str, Form]]:
    for where, forms in _typed(data, dict, "forms").items():
        for name, form in _typed(forms, dict, f"the forms for {reprlib.repr(where)}").items():
            if name not in layers or form not in FORMS:
                raise FileError(f"the plan gives {reprlib.repr(name)} the form {reprlib.repr(form)}: one is unknown")
    found: dict[str, dict[str, Form]] = data
    return found


def _reasons(data: Any) -> dict[str, str]:
    reasons: dict[str, str] = _typed(data, dict, "the plan's left_alone")
    return {name: _typed(reason, str, "a reason in the plan's left_alone") for name, reason in reasons.items()}


def _usage(data: Any) -> Expected | None:
    if data is None:
        return None
    what, amounts = "the plan's usage", {f.name for f in dataclasses.fields(Usage)}
    _check_keys(_typed(data, dict, what), {"before", "after"}, what)
    for side in data.values():
        _check_keys(_typed(side, dict, what), amounts, what)
        if not all(type(amount) is int and amount >= 0 for amount in side.values()):
            raise FileError(f"{what} must be whole numbers from 0")
    return Expected(Usage(**data["before"]), Usage(**data["after"]))


def _before_and_after(data: Any) -> dict[str, tuple[int, int]]:
    _check_keys(_typed(data, dict, "the plan's whole"), {"params", "stored", "flops"}, "the plan's whole", set())
    for unit, counts in data.items():
        if type(counts) is not list or len(counts) != 2 or not all(type(n) is int and n >= 0 for n in counts):
            raise FileError(f"the plan's whole: {unit} {reprlib.repr(counts)} is not two whole numbers from 0")
    return {unit: (before, after) for unit, (before, after) in data.items()}


def _check_widths(layer: LayerPlan, plan: Plan) -> None:
    """The numbers of kept channels must be those of the slices."""
    kind = LAYER_TYPES[layer.kind]
    outputs, inputs = (plan.kept(f"{layer.name}.weight", dim) for dim in (kind.out_dim, kind.in_dim))
    left = layer.out_features if outputs is None else len(outputs)
    read = layer.in_features if inputs is None else len(inputs) * layer.groups
    bias = plan.slices.get(f"{layer.name}.bias", {})
    biased = not bias or not layer.transformed or plan.kept(f"{layer.name}.bias", 0) == outputs
    if left != layer.kept_outputs or (not layer.depthwise and read != layer.kept_inputs) or not biased:
        raise FileError(f"layer {reprlib.repr(layer.name)} of the plan keeps other numbers of channels than its slices")
