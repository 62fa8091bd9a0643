"""A convolution's output that is on its way to its batch norm is, for everybody else, the output itself."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusion.test_fuse import assert_same
from pcn.fusion import fuse_
from pcn.fusion.handed import Handed
from pcn.nn import PCConv2d

BATCH = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    first, second = (PCConv2d(8, 8, 3, rank=4, padding=1) for _ in range(2))
    for layer in (first, second):
        nn.init.normal_(layer.bias)
        nn.init.normal_(layer.mean)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), first, nn.BatchNorm2d(8), nn.ReLU(), second, nn.BatchNorm2d(8)
    ).double()


def pair() -> tuple[nn.Sequential, nn.Sequential]:
    model = network()
    twin = copy.deepcopy(model)
    sources = [chain.source for chain in fuse_(model, BATCH).chains]
    assert sources == ["0", "3", "6"]
    return model, twin


def test_it_goes_to_the_batch_norm_without_its_constant() -> None:
    model, _ = pair()
    assert type(model[:4](BATCH)) is Handed


@pytest.mark.parametrize(
    "read",
    [
        lambda y: y.square().mean((0, 2, 3)),
        lambda y: torch.cat([y, y]),
        lambda y: 2 * y + y,
        lambda y: y[:2] * torch.ones(4, 4, dtype=y.dtype),
        lambda y: torch.tensor(len(y)),
        lambda y: y.mul_(2),
        lambda y: nn.functional.dropout(y, 0.0),
    ],
)
def test_whoever_reads_it_sees_the_output(read: Callable[[Tensor], Tensor]) -> None:
    model, twin = pair()
    torch.testing.assert_close(read(model[:4](BATCH)), read(twin[:4](BATCH)))


def test_it_counts_as_a_tensor_and_keeps_the_weights_of_its_call() -> None:
    model, twin = pair()
    kept, expected = model[:4](BATCH), twin[:4](BATCH)
    assert isinstance(kept, Tensor)
    with torch.no_grad():
        model[3].bias += 1
        torch.testing.assert_close(kept + 0, expected)


def test_at_inference_it_goes_to_the_running_mean_where_no_gradient_is_wanted() -> None:
    model, twin = pair()
    model.eval()
    twin.eval()
    with torch.no_grad():
        handed = model[:4](BATCH)
        assert type(handed) is Handed
        torch.testing.assert_close(handed.product + handed.constant.view(-1, 1, 1), twin[:4](BATCH))
        torch.testing.assert_close(model[4:](handed), twin[4:](twin[:4](BATCH)))
    assert type(model[:4](BATCH)) is Tensor


def test_what_is_handed_over_can_be_copied_and_stored() -> None:
    model, twin = pair()
    kept, expected = model[:4](BATCH), twin[:4](BATCH).detach()
    with torch.no_grad():
        for found in (pickle.loads(pickle.dumps(model[:4](BATCH))), copy.deepcopy(model[:4](BATCH)), kept.detach()):
            assert type(found) is Tensor
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("looks", [lambda y: y.mean(), lambda y: y.add_(1)])
def test_a_batch_norm_reads_what_others_have_seen_or_changed(looks: Callable[[Tensor], Any]) -> None:
    model, twin = pair()
    outputs = []
    for each in (model, twin):
        y = each[:4](BATCH)
        looks(y)
        outputs.append(each[4:](y))
    torch.testing.assert_close(*outputs)


REPLACED: dict[str, Callable[[nn.Sequential], Any]] = {
    "nothing": lambda model: model.__setitem__(7, nn.Identity()),
    "a fresh norm": lambda model: model.__setitem__(7, nn.BatchNorm2d(8).double()),
    "another kind of norm": lambda model: model.__setitem__(7, nn.GroupNorm(2, 8).double()),
    "norms over processes": lambda model: nn.SyncBatchNorm.convert_sync_batchnorm(model),
}


@pytest.mark.parametrize("name", REPLACED)
def test_where_its_batch_norm_has_gone_it_is_not_waited_for(name: str) -> None:
    model, twin = pair()
    for each in (model, twin):
        REPLACED[name](each)
    modes = (False,) if name == "norms over processes" else (True, False)  # that one trains on GPUs only
    for training in modes:
        output = model.train(training)(BATCH)
        assert type(output) is Tensor
        torch.testing.assert_close(output, twin.train(training)(BATCH))


def test_a_copy_of_the_layer_alone_gives_its_output() -> None:
    model, twin = pair()
    read = torch.randn(4, 8, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(copy.deepcopy(model[6])(read) + 0, twin[6](read))


def test_copies_of_the_model_are_fused_like_it() -> None:
    model, twin = pair()
    assert_same(copy.deepcopy(model), twin, BATCH)
