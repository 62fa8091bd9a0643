"""Real architectures become principal component networks, exactly, or say why some layer does not."""

from __future__ import annotations

import copy
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from torch import nn

import pcn
from architectures import ARCHITECTURES, BY_NAME, Architecture
from architectures.prepare import difference, outputs, prepare, pruned, with_dropped_inputs_at_zero
from pcn.layers import layer_type
from pcn.nn import PCModule

pytest.importorskip("transformers")

# The families in a normal run; `make test-slow` goes through all.
FAST = [
    *("resnet_basic", "resnet_bottleneck", "regnet_y", "convnext", "efficientnet"),
    *("vit", "swin", "segformer", "levit", "clip", "whisper", "wav2vec2"),
    *("bert", "distilbert", "albert", "t5", "bart"),
    *("gpt2", "gpt_neox", "llama", "phi3", "mamba", "mixtral"),
    *("resnet_like", "densenet", "shufflenet", "unet", "lstm", "attention", "transformer_encoder"),
]
# Those that are also saved, folded, exported and trained in a normal run.
ROUND_TRIPS = ["resnet_basic", "efficientnet", "swin", "gpt2", "llama", "wav2vec2", "densenet", "unet"]


def among(names: list[str]) -> pytest.MarkDecorator:
    """Run for all architectures, those not named only in a slow run."""
    slow = pytest.mark.slow
    parameters = [pytest.param(a, id=a.name, marks=[] if a.name in names else slow) for a in ARCHITECTURES]
    return pytest.mark.parametrize("architecture", parameters)


pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),  # DeBERTa, when imported
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk"),  # a copied LSTM
    pytest.mark.filterwarnings("ignore:The tensor attributes self.recurrent"),  # an LSTM, when exported
]


@among(FAST)
def test_full_rank_leaves_the_function_unchanged(architecture: Architecture) -> None:
    before = prepare(architecture)
    model, plan = before.transformed()
    assert plan.transformed
    assert difference(outputs(model, before.batch), before.outputs()) < 1e-9
    other = architecture.batch(seed=2)
    assert difference(outputs(before.model, other), before.outputs()) > 1e-2
    assert difference(outputs(model, other), outputs(before.model, other)) < 1e-9


@among(FAST)
def test_full_rank_leaves_the_function_unchanged_in_single_precision(architecture: Architecture) -> None:
    model, batch = architecture.build(torch.float32), architecture.batch(torch.float32)
    expected = outputs(model, batch)
    stats = pcn.analyze(model, [batch])
    plan = pcn.PCNConfig(rank=1.0, skip_larger=False)
    pcn.make_plan(model, stats, plan, graph=prepare(architecture).graph).apply_(model, stats)
    assert difference(outputs(model, batch), expected) < 5e-4  # rounding adds up over fifty layers


@among(FAST)
def test_every_layer_is_transformed_or_has_a_reason(architecture: Architecture) -> None:
    before = prepare(architecture)
    _, plan = before.transformed()
    for name, module in before.model.named_modules():
        if layer_type(module) is not None or isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            layer = plan.layers.get(name)
            assert (layer is not None and (layer.rank or layer.reason)) or plan.left_alone[name]


REASONS = {
    "gpt2": {"lm_head": r"weight is shared by 'lm_head' and 'transformer\.wte'"},
    "t5": {"lm_head": "weight is shared by"},
    "wav2vec2": {"*pos_conv_embed.conv": "parametrised"},
    "attention": {"attention.out_proj": "MultiheadAttention reads its weight directly"},
    "transformer_encoder": {"encoder.layers.*.linear1": "TransformerEncoderLayer reads its weight directly"},
    "mamba": {"*.dt_proj": "never called", "*.conv1d": "depthwise"},
    "mobilenet_v2": {"*conv_3x3.convolution": "depthwise"},
    "bit": {"*.conv1": "WeightStandardizedConv2d is not a Linear"},
    "falcon": {"*dense_h_to_4h": "FalconLinear is not a Linear"},
    "mixtral": {"*experts": "MixtralExperts is not a Linear"},
    "lstm": {"recurrent": "LSTM is not a Linear"},
    "unet": {"upsample": "ConvTranspose2d is not a Linear"},
}


@pytest.mark.parametrize("name", REASONS)
def test_layers_are_left_alone_for_the_right_reason(name: str) -> None:
    _, plan = prepare(BY_NAME[name]).transformed()
    reasons = {**plan.left_alone, **{layer.name: layer.reason for layer in plan.layers.values()}}
    for pattern, expected in REASONS[name].items():
        matching = [reason for layer, reason in reasons.items() if fnmatchcase(layer, pattern)]
        assert matching, f"{name} has no layer {pattern}"
        assert any(re.search(expected, reason or "") for reason in matching), matching


@among(FAST)
def test_dropping_outputs_means_zeros_for_their_readers(architecture: Architecture) -> None:
    before = prepare(architecture)
    model, plan = pruned(architecture)
    dropping = [layer for layer in plan.layers.values() if layer.kept_outputs < layer.out_features]
    assert bool(dropping) == architecture.prunes
    for layer in plan.layers.values():
        assert layer.kept_outputs <= max(1, round(layer.out_features / 2)) or layer.output_reason, layer.name
    reference = with_dropped_inputs_at_zero(before.model, plan)
    assert difference(outputs(model, before.batch), outputs(reference, before.batch)) < 1e-9


# What must not stay as it is: all but the last layer of a convolutional network, the hidden layer of every MLP.
PRUNED = {
    "resnet_basic": ["resnet.*"],
    "resnet_bottleneck": ["resnet.*"],
    "regnet_y": ["regnet.*"],
    "efficientnet": ["efficientnet.embeddings.*", "efficientnet.encoder.blocks.*"],
    "mobilenet_v2": ["mobilenet_v2.*"],
    "convnext": ["*.pwconv1"],
    "segformer": ["*.mlp.fc1", "*.mlp.dwconv.dwconv", "decode_head.linear_*"],
    "vit": ["*.mlp.fc1"],
    "swin": ["*.mlp.fc1"],
    "levit": ["*.embedding_layer_*.convolution", "*.linear_up.linear", "*.linear_down.linear"],
    "bert": ["*.intermediate.dense"],
    "gpt2": ["*.mlp.c_fc"],
    "llama": ["*.gate_proj", "*.up_proj"],
    "t5": ["*.wi"],
    "whisper": ["*.fc1", "model.encoder.conv1"],
    "wav2vec2": ["*.intermediate_dense"],
    "densenet": ["stem.0", "layers.*", "transition.0.0"],
    "shufflenet": ["stem.0", "units.*", "grouped.0"],
    "unet": ["down*", "up*"],
}


@pytest.mark.parametrize("name", PRUNED)
def test_outputs_that_can_go_do_go(name: str) -> None:
    _, plan = pruned(BY_NAME[name])
    for pattern in PRUNED[name]:
        matching = [layer for layer in plan.layers.values() if fnmatchcase(layer.name, pattern)]
        assert matching, f"{name} has no layer {pattern}"
        for layer in [layer for layer in matching if layer.out_features > 1]:
            assert layer.kept_outputs < layer.out_features, (layer.name, layer.output_reason)


@among(ROUND_TRIPS)
def test_loaded_into_a_fresh_model_it_is_the_same(architecture: Architecture, tmp_path: Path) -> None:
    model, plan = pruned(architecture)
    pcn.save(model, tmp_path / "small")
    loaded = pcn.load(architecture.build(), tmp_path / "small")
    batch = prepare(architecture).batch
    assert pcn.get_plan(loaded) == plan
    assert difference(outputs(loaded, batch), outputs(model, batch)) == 0


@among(ROUND_TRIPS)
def test_folded_it_has_its_old_shape_and_computes_the_same(architecture: Architecture) -> None:
    before = prepare(architecture)
    model = copy.deepcopy(pruned(architecture)[0])
    expected = outputs(model, before.batch)
    gained = pcn.fold_(model)
    shapes = {key: tensor.shape for key, tensor in model.state_dict().items()}
    for layer in gained:
        assert shapes.pop(f"{layer}.bias")
    assert shapes == {key: tensor.shape for key, tensor in before.model.state_dict().items()}
    assert difference(outputs(model, before.batch), expected) < 1e-9
    for old, new in zip(before.model.modules(), model.modules(), strict=True):
        assert type(old) is type(new)


@pytest.mark.parametrize("form", ["factored", "dense"])
@among(ROUND_TRIPS)
def test_plain_forms_compute_the_same(architecture: Architecture, form: pcn.rewriting.plain.PlainForm) -> None:
    batch = prepare(architecture).batch
    model, _ = pruned(architecture)
    plain = pcn.to_plain(model, form=form)
    assert not any(isinstance(module, PCModule) for module in plain.modules())
    assert difference(outputs(plain, batch), outputs(model, batch)) < 1e-9


@among(ROUND_TRIPS)
def test_torch_export_follows_the_transformed_model(architecture: Architecture) -> None:
    before = prepare(architecture)
    if before.graph is None:
        pytest.skip("torch.export cannot follow the original either")
    model = copy.deepcopy(pruned(architecture)[0])
    with torch.no_grad():
        model(**before.batch)  # LeViT keeps something of that, which an export must not be the first to do
    program = torch.export.export(model, (), before.batch, strict=False)
    assert difference(outputs(program.module(), before.batch), outputs(model, before.batch)) < 1e-9


@among(ROUND_TRIPS)
def test_it_trains_with_its_bases_frozen(architecture: Architecture) -> None:
    before = prepare(architecture)
    model = copy.deepcopy(pruned(architecture)[0]).train()
    frozen = {key: t.clone() for key, t in model.state_dict().items() if key.endswith((".basis", ".mean"))}
    weights = {layer.name: model.get_submodule(layer.name).weight for layer in pcn.get_plan(model).transformed}
    start = {name: weight.detach().clone() for name, weight in weights.items()}
    result = model(**before.batch)
    leaves = torch.utils._pytree.tree_leaves(dict(result) if isinstance(result, dict) else result)
    sum(leaf.square().mean() for leaf in leaves if leaf.is_floating_point()).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert frozen.keys() == {f"{name}.{part}" for name in weights for part in ("basis", "mean")}
    assert all(torch.equal(model.state_dict()[key], tensor) for key, tensor in frozen.items())
    assert not any(key.endswith((".basis", ".mean")) for key, _ in model.named_parameters())
    moved = [name for name, weight in weights.items() if not torch.equal(weight.detach(), start[name])]
    assert all(weights[name].isfinite().all() for name in weights)
    assert len(moved) == len([w for w in weights.values() if w.grad is not None and w.grad.any()]) > 0
