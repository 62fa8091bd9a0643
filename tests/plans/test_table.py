"""A printed plan says everything once."""

from __future__ import annotations

import pcn
from pcn import LayerRule, PCNConfig
from small import Branching, conv_net, images, vectors


def test_a_tracing_error_is_said_once_with_the_layers_that_it_holds_for() -> None:
    model = Branching()
    stats = pcn.analyze(model, [vectors()])
    plan = pcn.make_plan(model, stats, PCNConfig(rank=0.5, keep_outputs=0.5, skip_larger=False))
    text = str(plan)
    assert len(plan.transformed) == 3
    assert text.count("torch.export cannot follow") == 1
    assert "  body.fc1, body.fc2, body.fc3: outputs stay: torch.export cannot follow Branching" in text
    assert max(map(len, text.split("\n\n")[0].splitlines())) < 80  # the table itself stays narrow


def test_what_is_stored_stands_beside_what_is_trained() -> None:
    model = conv_net()
    rules = {"fc1": LayerRule(rank=3), "conv2": LayerRule(rank=2)}
    plan = pcn.make_plan(model, None, PCNConfig(rank=None, layers=rules, skip_larger=False), example=images(2))
    header, *rows = (line.split() for line in str(plan).split("\n\n")[0].splitlines())
    assert header == ["layer", "in", "out", "trained", "stored", "FLOPs"]
    stored = {row[0]: int(row[-2].replace(",", "")) for row in rows}
    assert stored == {name: plan.layers[name].stored_after for name in ("conv2", "fc1")}
    before, after = plan.trainable_before, sum(layer.stored_after for layer in plan.layers.values())
    assert f"{before:,} -> {after:,} stored in them, with bases and means ({after / before:.1%})" in str(plan)


def test_numbers_are_right_aligned() -> None:
    model = conv_net()
    plan = pcn.make_plan(model, None, PCNConfig(rank=2, skip_larger=False), example=images(2))
    lines = str(plan).split("\n\n")[0].splitlines()
    assert len({len(line) for line in lines}) == 1


def test_trained_outputs_behind_a_basis_are_shown() -> None:
    plan = pcn.make_plan(conv_net(), None, PCNConfig(rank=None, layers={"fc1": LayerRule(rank=4, output_rank=5)}))
    assert "(5 trained)" in str(plan)
