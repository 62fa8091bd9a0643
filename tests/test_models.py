"""The paper's networks have the paper's sizes, and start from TensorFlow's initialisations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pcn
from pcn import models
from pcn.cli.counts import NETWORKS, build
from pcn.costs.count import Cost, count
from pcn.layers import transformable_layers

# Every figure of the paper's three tables; the totals of Conv4-PCN and VGG-19-PCN are not in them and follow from
# the same way of counting.
COSTS = {
    "conv4": Cost(2_425_930, 2_425_930),
    "conv4-pcn": Cost(101_810, 317_910),
    "resnet20": Cost(272_762, 274_362),
    "resnet110": Cost(1_731_002, 1_739_322),
    "wide_resnet20": Cost(4_331_978, 4_338_378),
    "wide_resnet20-pcn0": Cost(1_323_850, 1_443_018),
    "wide_resnet20-pcn1": Cost(1_094_154, 1_223_114),
    "wide_resnet20-pcn2": Cost(473_802, 541_834),
    "vgg19": Cost(143_667_240, 143_667_240),
    "vgg19-pcn": Cost(27_201_576, 37_649_960),
    "resnet50": Cost(25_557_032, 25_610_152),
    "resnet152": Cost(60_192_808, 60_344_232),
    "wide_resnet50": Cost(98_004_072, 98_110_312),
    "wide_resnet50-pcn": Cost(62_375_016, 71_936_872),
}
PLAIN = [name for name in models.names() if models.config(name) is None]
SMALL = ["mnist_network", "conv4", "resnet20"]


def test_the_counted_networks_are_those_of_the_table() -> None:
    assert list(NETWORKS) == list(COSTS)


@pytest.mark.parametrize("name", COSTS)
def test_size_is_the_papers(name: str) -> None:
    assert count(build(name)) == COSTS[name]


@pytest.mark.parametrize("name", PLAIN)
def test_output_is_one_score_for_each_class(name: str) -> None:
    with torch.device("meta"):
        output = models.build(name)(models.example(name, batch=3))
    assert output.shape == (3, 1000 if models.example(name).shape[-1] == 224 else 10)


@pytest.mark.parametrize("name", [name for name in models.names() if name not in PLAIN])
def test_configuration_names_layers_of_the_parent(name: str) -> None:
    config = models.config(name)
    assert config is not None
    with torch.device("meta"):
        layers = [layer for layer, _, _ in transformable_layers(models.build(name))]
    config.check_names(layers)
    assert config.rank is None, "layers that the paper does not name are left alone"


@pytest.mark.parametrize("name", ["wide_resnet20-pcn0", "wide_resnet20-pcn1"])
def test_rank_is_the_width_of_the_same_input_in_resnet20(name: str) -> None:
    narrow = models.resnet20()
    config = models.config(name)
    assert config is not None
    for layer, module, left_alone in transformable_layers(narrow):
        rule, _ = config.rule_for(layer)
        if left_alone is None and rule.rank is not None and config.excludes(layer) is None:
            assert rule.rank == module.in_channels


def test_pcn0_starts_after_the_entry_of_stage_two() -> None:
    changed = {layer.name for layer in pcn.get_plan(build("wide_resnet20-pcn0")).transformed}
    assert not {"conv1", "stage2.0.conv1", "stage2.0.shortcut.conv", "fc"} & changed
    assert {"stage2.0.conv2", "stage3.0.conv1", "stage3.0.shortcut.conv"} <= changed
    assert not any(name.startswith("stage1") for name in changed)


def test_pcn2_keeps_the_same_channels_of_layers_that_meet_in_a_sum() -> None:
    model = build("wide_resnet20-pcn2")
    kept = {pcn.get_plan(model).slices[f"stage3.{block}.conv2.weight"][0] for block in range(3)}
    assert len(kept) == 1
    assert model.fc.in_features == 64


def test_half_width_is_a_quarter_of_the_size() -> None:
    assert count(models.wide_resnet20(width=32)).trainable == pytest.approx(4_331_978 / 4, rel=0.01)


@pytest.mark.parametrize("name", SMALL)
def test_linear_layers_start_glorot_uniform_with_zero_bias(name: str) -> None:
    for module in models.build(name).modules():
        if isinstance(module, nn.Linear):
            bound = (6 / (module.in_features + module.out_features)) ** 0.5
            assert bound * 0.9 < float(module.weight.detach().abs().max()) <= bound
            assert not module.bias.any()


def test_residual_convolutions_start_normal_with_two_over_fan_out() -> None:
    weight = models.wide_resnet20().stage3[1].conv1.weight
    assert float(weight.detach().std()) == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.01)


@pytest.mark.parametrize("name", ["resnet20", "resnet50"])
def test_batch_norm_follows_the_authors(name: str) -> None:
    norms = [module for module in models.build(name).modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-5, 0.003)}


def test_imagenet_blocks_start_as_their_shortcut() -> None:
    block = models.resnet50(width=4).stage2[1].eval()
    x = torch.rand(2, 32, 5, 5)
    torch.testing.assert_close(block(x), x)


def test_mnist_network_trains_with_the_papers_loss() -> None:
    model, images, labels = models.mnist_network(width=20), torch.rand(4, 1, 28, 28), torch.tensor([1, 2, 3, 4])
    outputs = model(images).exp()
    normalised = outputs / outputs.sum(1, keepdim=True)
    expected = -normalised[range(4), labels].log().mean()
    torch.testing.assert_close(nn.functional.cross_entropy(model(images), labels), expected)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(pcn.ConfigError, match=r"'resnet21'.*did you mean 'resnet20'"):
        models.build("resnet21")
