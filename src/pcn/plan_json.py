"""A plan as JSON and back: only known fields of the right type get in."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any, cast

from pcn.config import ORDERS
from pcn.errors import FileError
from pcn.layers import LAYER_TYPES
from pcn.plan import Cut, LayerPlan, Plan

FORMAT = "pcn-plan"
VERSION = 1


def dumps(plan: Plan) -> str:
    """Return the plan as JSON text that :func:`loads` reads back as an equal plan."""
    layers = [_without_defaults(layer) for layer in plan.layers.values()]
    slices = {
        name: {str(dim): {"size": cut.size, "kept": list(cut.kept)} for dim, cut in dims.items()}
        for name, dims in plan.slices.items()
    }
    return json.dumps(
        {"format": FORMAT, "version": VERSION, "layers": layers, "slices": slices, "left_alone": plan.left_alone}
    )


def loads(text: str) -> Plan:
    """Read a plan, or raise :class:`FileError` that says what is wrong with it."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"the plan is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise FileError(f"this is not a plan: its format is not {FORMAT!r}")
    if data.get("version") != VERSION:
        raise FileError(f"the plan has version {data.get('version')!r}; this library reads version {VERSION}")
    layers = [_layer(item) for item in _list(data.get("layers"), "layers")]
    if len({layer.name for layer in layers}) != len(layers):
        raise FileError("the plan names a layer twice")
    plan = Plan(
        {layer.name: layer for layer in layers}, _slices(data.get("slices", {})), _texts(data.get("left_alone", {}))
    )
    _check_widths(plan)
    return plan


def _without_defaults(layer: LayerPlan) -> dict[str, Any]:
    values = dataclasses.asdict(layer)
    defaults = {f.name: f.default for f in dataclasses.fields(LayerPlan)}
    return {key: value for key, value in values.items() if key not in defaults or value != defaults[key]}


def _layer(item: Any) -> LayerPlan:
    fields = {f.name: f for f in dataclasses.fields(LayerPlan)}
    types = typing.get_type_hints(LayerPlan)
    if not isinstance(item, dict):
        raise FileError("a layer of the plan is not an object")
    for key, value in item.items():
        if key not in fields:
            raise FileError(f"a layer of the plan has an unknown field {key!r}")
        if not _is(value, types[key]):
            raise FileError(f"layer {item.get('name')!r} of the plan: {key} is {value!r}")
    missing = [n for n in ("name", "kind", "in_features", "out_features") if n not in item]
    if missing:
        raise FileError(f"a layer of the plan lacks {', '.join(missing)}")
    layer = LayerPlan(**{k: tuple(v) if k == "kernel" else v for k, v in item.items()})
    return _sane(layer)


def _is(value: Any, expected: Any) -> bool:
    """Say whether a JSON value has a field's type."""
    if typing.get_origin(expected) is typing.Literal:
        return value in ORDERS
    if typing.get_origin(expected) is tuple:
        return isinstance(value, list) and all(type(v) is int and v > 0 for v in value)
    if options := typing.get_args(expected):
        return any(value is None if option is type(None) else _is(value, option) for option in options)
    return type(value) is expected


def _sane(layer: LayerPlan) -> LayerPlan:
    sizes = (layer.in_features, layer.out_features, layer.groups, layer.kept_inputs, layer.kept_outputs)
    width = layer.in_features // layer.groups if layer.groups > 0 else 0
    fits = layer.kept_inputs <= layer.in_features and layer.kept_outputs <= layer.out_features
    ranked = layer.rank is None or 1 <= layer.rank <= width
    if layer.kind not in LAYER_TYPES or min(sizes) < 1 or not fits or not ranked:
        raise FileError(f"layer {layer.name!r} of the plan has impossible sizes or an unknown kind {layer.kind!r}")
    return layer


def _slices(data: Any) -> dict[str, dict[int, Cut]]:
    slices: dict[str, dict[int, Cut]] = {}
    if not isinstance(data, dict):
        raise FileError("the plan's slices are not an object")
    for name, dims in data.items():
        if not isinstance(dims, dict) or not dims:
            raise FileError(f"the plan's slices of {name!r} are not an object")
        for dim, cut in dims.items():
            if not dim.isdecimal() or not isinstance(cut, dict) or set(cut) != {"size", "kept"}:
                raise FileError(f"the plan's slices of {name!r} must give size and kept per dimension")
            slices.setdefault(name, {})[int(dim)] = _cut(name, cut["size"], _list(cut["kept"], f"slices of {name!r}"))
    return slices


def _cut(name: str, size: Any, kept: list[Any]) -> Cut:
    ascending = all(type(k) is int and k >= 0 for k in kept) and kept == sorted(set(kept))
    if type(size) is not int or not kept or not ascending or kept[-1] >= size:
        raise FileError(f"the plan's slices of {name!r} must be ascending indices below their size")
    return Cut(size, tuple(kept))


def _check_widths(plan: Plan) -> None:
    """The numbers of kept channels must be those of the slices."""
    for layer in plan.layers.values():
        kind = LAYER_TYPES[layer.kind]
        dims = plan.slices.get(f"{layer.name}.weight", {})
        outputs = len(dims[kind.out_dim].kept) if kind.out_dim in dims else layer.out_features
        inputs = len(dims[kind.in_dim].kept) * layer.groups if kind.in_dim in dims else layer.in_features
        if outputs != layer.kept_outputs or (not layer.depthwise and inputs != layer.kept_inputs):
            raise FileError(f"layer {layer.name!r} of the plan keeps other numbers of channels than its slices do")


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise FileError(f"the plan's {what} are not a list")
    return value


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise FileError("the plan's left_alone must map names to reasons")
    return cast("dict[str, str]", value)
