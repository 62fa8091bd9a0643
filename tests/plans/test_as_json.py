"""Plans survive JSON, and nothing else gets in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pcn
from pcn.config import ORDERS
from pcn.errors import FileError
from pcn.layers import LAYER_TYPES
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Cut, Plan
from small import Mlp, vectors

texts = st.text(max_size=12)
sizes = st.integers(1, 6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def cuts(draw: st.DrawFn, size: int) -> Cut:
    kept = draw(st.sets(st.integers(0, size - 1), min_size=1))
    return Cut(size, tuple(sorted(kept)))


@st.composite
def layers(draw: st.DrawFn, name: str) -> tuple[LayerPlan, dict[int, Cut]]:
    kind = LAYER_TYPES[draw(st.sampled_from(sorted(LAYER_TYPES)))]
    groups = draw(st.integers(1, 3)) if kind.spatial else 1
    width, outputs = draw(st.integers(2, 6)), draw(sizes) * groups
    dims: dict[int, Cut] = {}
    if draw(st.booleans()):
        dims[kind.in_dim] = draw(cuts(width))
    if draw(st.booleans()):
        dims[kind.out_dim] = draw(cuts(outputs))
    layer = LayerPlan(
        name,
        kind.kind,
        width * groups,
        outputs,
        groups,
        tuple(draw(sizes) for _ in range(kind.spatial)),
        bias=draw(st.booleans()),
        rank=draw(st.none() | st.integers(1, width)),
        kept_inputs=len(dims[kind.in_dim].kept) * groups if kind.in_dim in dims else width * groups,
        kept_outputs=len(dims[kind.out_dim].kept) if kind.out_dim in dims else outputs,
        order=draw(st.sampled_from(ORDERS)),
        train_basis=draw(st.booleans()),
        keep_dropped=draw(st.booleans()),
        activation=draw(st.none() | texts),
        norm_after=draw(st.none() | texts),
        in_positions=draw(st.none() | sizes),
        out_positions=draw(st.none() | sizes),
        reason=draw(st.none() | texts),
        output_reason=draw(st.none() | texts),
        note=draw(st.none() | texts),
    )
    return layer, dims


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    made = [draw(layers(name)) for name in draw(st.lists(texts, max_size=3, unique=True))]
    slices = {f"{layer.name}.weight": dims for layer, dims in made if dims}
    others = draw(st.dictionaries(texts.map("{}.running_mean".format), cuts(5).map(lambda cut: {0: cut}), max_size=2))
    return Plan({layer.name: layer for layer, _ in made}, {**others, **slices}, draw(st.dictionaries(texts, texts)))


@given(plans())
def test_a_plan_comes_back_equal(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


@given(json_values)
def test_other_json_is_refused(value: Any) -> None:
    with pytest.raises(FileError):
        Plan.from_json(json.dumps(value))


@given(st.text())
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(FileError):
        Plan.from_json(text)


@given(plans(), json_values, st.data())
def test_a_damaged_plan_is_refused_or_means_something(plan: Plan, value: Any, data: st.DataObject) -> None:
    """Put any value anywhere: no other error, and what gets in is a plan that can be written again."""
    document = json.loads(plan.to_json())
    holders = [found for found in walk(document) if found]
    holder = data.draw(st.sampled_from(holders))
    key = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
    holder[key] = value
    try:
        found = Plan.from_json(json.dumps(document))
    except FileError:
        return
    assert Plan.from_json(found.to_json()) == found


@given(plans(), st.data())
def test_a_plan_cut_short_is_refused(plan: Plan, data: st.DataObject) -> None:
    text = plan.to_json()
    with pytest.raises(FileError, match="not JSON"):
        Plan.from_json(text[: data.draw(st.integers(0, len(text) - 1))])


def walk(value: Any) -> list[Any]:
    """All objects and lists of a document."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return [] if inner is None else [value, *(found for item in inner for found in walk(item))]


LAYER = {"name": "fc", "kind": "linear", "in_features": 8, "out_features": 4, "kept_inputs": 8, "kept_outputs": 4}
CONV = {"name": "c", "kind": "conv2d", "in_features": 8, "out_features": 6, "groups": 2, "kernel": [3, 3]}


def document(**changes: Any) -> str:
    plain = {"format": "pcn-plan", "version": 1, "layers": [LAYER], "slices": {}, "left_alone": {}}
    return json.dumps({**plain, **changes})


def sliced(**cut: Any) -> str:
    return document(slices={"x": {"0": {"size": 4, "kept": [0, 2], **cut}}})


def test_what_the_hostile_ones_below_start_from_is_fine() -> None:
    assert Plan.from_json(document(layers=[LAYER, CONV])).layers["fc"].in_features == 8
    assert Plan.from_json(sliced()).kept("x", 0) == (0, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "not JSON"),
        ('{"a":' * 100_000, "not JSON"),
        ("1" * 10_000, "not JSON"),
        ('{"format": "pcn-plan", "format": "pcn-plan"}', "a key twice"),
        ("{}", "its format is not 'pcn-plan'"),
        (document(format="other"), "its format is not"),
        (document(version=2), "version 2, this library reads 1; use the one that wrote it"),
        (document(version=True), "version True"),
        (document(version=1.0), "version 1.0"),
        (document(more=1), "unknown field 'more'"),
        (document(whole={"params": [3]}), "whole: params .* is not two whole numbers"),
        (document(whole={"stored": [3, -1]}), "whole: stored .* is not two whole numbers"),
        (document(whole={"flops": "35"}), "whole: flops '35' is not two whole numbers"),
        (document(whole={"joules": [3, 1]}), "the plan's whole has an unknown field 'joules'"),
        (document(whole=[3, 1]), "the plan's whole: .* is not a dict"),
        ('{"format": "pcn-plan", "version": 1}', "lacks layers, left_alone, slices"),
        (document(layers={}), "is not a list"),
        (document(layers=[3]), "is not a dict"),
        (document(layers=[LAYER, LAYER]), "names a layer twice"),
        (document(layers=[{"name": "fc"}]), "lacks in_features, kind, out_features"),
        (document(layers=[{**LAYER, "eval": "import os"}]), "unknown field 'eval'"),
        (document(layers=[{**LAYER, "__class__": "x"}]), "unknown field '__class__'"),
        (document(layers=[{**LAYER, "name": 3}]), "name cannot be 3"),
        (document(layers=[{**LAYER, "kind": "conv9d"}]), "unknown kind 'conv9d'"),
        (document(layers=[{**LAYER, "rank": 0}]), "impossible sizes"),
        (document(layers=[{**LAYER, "rank": 9}]), "impossible sizes"),
        (document(layers=[{**LAYER, "rank": 2.0}]), "rank cannot be 2.0"),
        (document(layers=[{**LAYER, "rank": True}]), "rank cannot be True"),
        (document(layers=[{**LAYER, "rank": float("nan")}]), "rank cannot be nan"),
        (document(layers=[{**LAYER, "rank": 10**400}]), "impossible sizes"),
        (document(layers=[{**LAYER, "rank": 1e999}]), "rank cannot be inf"),
        (document(layers=[{**LAYER, "in_features": -8}]), "impossible sizes"),
        (document(layers=[{**LAYER, "kept_inputs": 9}]), "impossible sizes"),
        (document(layers=[{**LAYER, "kept_outputs": 3}]), "other numbers of channels"),
        (
            document(layers=[{**LAYER, "rank": 2}], slices={"fc.bias": {"0": {"size": 4, "kept": [0]}}}),
            "than its slices",
        ),
        (document(layers=[{**LAYER, "kernel": [3]}]), "impossible sizes"),
        (document(layers=[{**CONV, "kernel": [3, 0]}]), r"kernel cannot be \[3, 0\]"),
        (document(layers=[{**CONV, "kernel": "33"}]), "kernel cannot be '33'"),
        (document(layers=[{**CONV, "groups": 0}]), "impossible sizes"),
        (document(layers=[{**CONV, "groups": 4}]), "impossible sizes"),
        (document(layers=[{**LAYER, "order": "sorted"}]), "order cannot be 'sorted'"),
        (document(layers=[{**LAYER, "order": None}]), "order cannot be None"),
        (document(layers=[{**LAYER, "train_basis": 1}]), "train_basis cannot be 1"),
        (document(layers=[{**LAYER, "note": ["x"] * 10**5}]), "note cannot be"),
        (document(slices=[]), "is not a dict"),
        (document(slices={"x": [1]}), "is not a dict"),
        (document(slices={"x": {"-1": {"size": 1, "kept": [0]}}}), "'-1' is not a dimension"),
        (document(slices={"x": {"9" * 5000: {"size": 1, "kept": [0]}}}), "is not a dimension"),
        (document(slices={"x": {"٣": {"size": 1, "kept": [0]}}}), "is not a dimension"),
        (document(slices={"x": {"0": {"size": 1}}}), "lacks kept"),
        (sliced(kept=[]), "ascending indices below the size"),
        (sliced(kept=[0, 0]), "ascending"),
        (sliced(kept=[2, 0]), "ascending"),
        (sliced(kept=[-1, 2]), "ascending"),
        (sliced(kept=[0, 4]), "ascending"),
        (sliced(kept=[0, 2.0]), "ascending"),
        (sliced(kept=[False, 2]), "ascending"),
        (sliced(size="4"), "ascending"),
        (sliced(kept=10**400), "is not a list"),
        (document(left_alone={"a": 1}), "1 is not a str"),
        (document(left_alone=["a"]), "is not a dict"),
    ],
)
def test_hostile_plans_are_refused_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(FileError, match=message) as refused:
        Plan.from_json(text)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("rule", [False, True])
def test_a_whole_number_may_say_how_much_is_preconditioned(rule: bool) -> None:
    layers = {"fc1": pcn.LayerRule(rank=2, precondition=1)} if rule else {}
    model = Mlp()
    stats = pcn.analyze(model, [vectors()])
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=2, precondition=1, skip_larger=False, layers=layers))
    assert plan.layers["fc1"].precondition == 1
    assert pcn.Plan.from_json(plan.to_json()) == plan
    assert pcn.Plan.from_json(plan.to_json().replace('"precondition": 1.0', '"precondition": 1')) == plan
