"""What a new user gives by mistake is named, with what is expected in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pcn
from pcn.errors import ConfigError, PCNError, StatisticsError
from small import Mlp, vectors

X = torch.randn(64, 12, generator=torch.Generator().manual_seed(0))


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 5))


TAKES_A_MODEL: dict[str, Callable[[Any], object]] = {
    "analyze": lambda model: pcn.analyze(model, [X]),
    "compress_": lambda model: pcn.compress_(model, [X]),
    "make_plan": lambda model: pcn.make_plan(model, None, pcn.PCNConfig(rank=2)),
    "apply_": lambda model: pcn.make_plan(Mlp(), None, pcn.PCNConfig(rank=2)).apply_(model, pcn.analyze(Mlp(), [X])),
    "reshape_": lambda model: pcn.make_plan(Mlp(), None, pcn.PCNConfig(rank=2)).reshape_(model),
    "Switch": lambda model: pcn.Switch(model, None),
    "recalibrate_": lambda model: pcn.recalibrate_(model, [X]),
    "fuse_": lambda model: pcn.fuse_(model, X),
    "to_plain": lambda model: pcn.to_plain(model),
    "fold_": lambda model: pcn.fold_(model),
    "trace": lambda model: pcn.trace(model, X),
    "measure_costs": lambda model: pcn.measure_costs(model, X, times=False),
}
TAKES_BATCHES: dict[str, Callable[[Any], object]] = {
    "analyze": lambda batches: pcn.analyze(normed(), batches),
    "compress_": lambda batches: pcn.compress_(normed(), batches),
    "a budget of memory": lambda batches: pcn.compress_(normed(), batches, memory_mib=0.9),
    "recalibrate_": lambda batches: pcn.recalibrate_(normed(), batches),
    "Switch": lambda batches: pcn.Switch(normed(), None).after_epoch(1, batches),
}


@pytest.mark.parametrize("function", TAKES_A_MODEL)
@pytest.mark.parametrize("model", ["resnet18", None, Mlp, X])
def test_a_model_that_is_none(function: str, model: object) -> None:
    with pytest.raises(ConfigError, match=f"the model is of type {type(model).__name__}: give a torch.nn.Module"):
        TAKES_A_MODEL[function](model)


@pytest.mark.parametrize("function", TAKES_BATCHES)
@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (None, "batches is of type NoneType; give an iterable of batches: a list or a data loader"),
        (64, "batches is of type int; give an iterable"),
        (X, r"batches is one Tensor; give an iterable of batches, such as \[batch\]"),
        ({"x": X}, "batches is one dict; give an iterable of batches"),
        (
            TensorDataset(X),
            r"batches is a TensorDataset, which holds samples.* DataLoader\(dataset, batch_size=None\) if its items",
        ),
        (
            [{"x": X}],
            r"the model failed on .*batch.*, called as model\(x=float32\[64, 12\]\): TypeError: .* forward=lambda",
        ),
        ([X[:, :7]], r"the model failed on .*batch.*, called as model\(float32\[64, 7\]\): RuntimeError"),
        ([X.to("meta")], "a batch is on the meta device, where tensors hold no values: give one for cpu"),
        ([X.numpy()], "a batch holds ndarray: give tensors"),
        (["a", "b"], "a batch holds str: give tensors"),
        ([()], "a batch is empty"),
        ([], r"there was no batch.*: .* iterated before may be used up, .* drop_last=True .* data set may be empty"),
        ([X[:0], X[:0]], "the batches hold no samples: |no batch with a sample to recalibrate"),
        (iter([]), "there was no batch"),
    ],
)
def test_batches_that_the_model_cannot_take(function: str, batches: object, message: str) -> None:
    with pytest.raises(PCNError, match=message):
        TAKES_BATCHES[function](batches)


def test_a_data_set_of_batches_is_taken_as_it_is_advised() -> None:
    batches = DataLoader(TensorDataset(X.view(4, 16, 12)), batch_size=None)
    assert pcn.analyze(normed(), batches).samples("0") == len(X)


def test_batches_that_batch_norm_cannot_be_measured_on() -> None:
    model = normed()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(StatisticsError, match=r"batch 1 has one sample, .* leave it out \(drop_last=True\)$"):
        pcn.recalibrate_(model, [X, X[:1]])
    with pytest.raises(StatisticsError, match="the batch norm '1' reads holds NaN or infinite values"):
        pcn.recalibrate_(model, [X, X.log()])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "an optimizer's class": (
        lambda: pcn.compress_(Mlp(), [X], optimizer=torch.optim.SGD),
        "the optimizer is SGD: give the one that trains this model",
    ),
    "a configuration in the optimizer's place": (
        lambda: pcn.Switch(Mlp(), pcn.PCNConfig()),
        "the optimizer is of type PCNConfig: give the one that trains this model",
    ),
    "an averaged copy that is none": (lambda: pcn.Switch(Mlp(), None, ema=0.999), "ema is of type float: give the"),
    "options of the analysis as text": (lambda: pcn.Switch(Mlp(), None, analysis="pool"), "give arguments of pcn.ana"),
    "an unknown one": (
        lambda: pcn.Switch(Mlp(), None, analysis={"pooling": 2}),
        "analysis has 'pooling'; did you mean 'pool'",
    ),
    "a wrong one": (lambda: pcn.Switch(Mlp(), None, analysis={"pool": 0.5}), "pool=0.5: give a whole number"),
    "one that the configuration has": (
        lambda: pcn.Switch(Mlp(), None, analysis={"exclude": "fc1"}),
        "analysis has 'exclude'; give arguments of pcn.analyze out of layers, pool",
    ),
    "an epoch's name": (lambda: pcn.Switch(Mlp(), None).after_epoch("1", [X]), "epoch='1': give how many are done"),
    "no step": (lambda: pcn.Switch(Mlp(), None).after_step(None, [X]), "step=None: give how many are done"),
    "an accuracy as text": (
        lambda: pcn.Switch(Mlp(), None, at=pcn.AccuracySlows()).after_epoch(1, [X], accuracy="93%"),
        "accuracy='93%' after epoch 1: give a finite number",
    ),
    "a share as text": (lambda: pcn.AccuracySlows("0.5"), r"AccuracySlows\('0.5'\): the share must lie"),
    "movements as text": (lambda: pcn.SubspacesSettle(None), r"SubspacesSettle\(None\): the share must lie"),
    "a fraction as text": (lambda: pcn.analyze(Mlp(), [X], fraction="0.5"), "fraction='0.5': the fraction must lie"),
    "layers by number": (lambda: pcn.analyze(Mlp(), [X], layers=[0, 1]), r"layers=\[0, 1\]: give layer names or globs"),
    "nothing to exclude": (lambda: pcn.PCNConfig(exclude=None), "exclude=None: give layer names or globs"),
    "one to exclude by number": (lambda: pcn.analyze(Mlp(), [X], exclude=2), "exclude=2: give layer names or globs"),
    "a forward function's name": (
        lambda: pcn.compress_(Mlp(), [X], forward="forward"),
        "forward='forward': give a function",
    ),
    "a graph that is a batch": (
        lambda: pcn.make_plan(Mlp(), None, pcn.PCNConfig(rank=2), graph=X),
        "graph is of type Tensor: give what pcn.trace",
    ),
    "a model for its graph": (
        lambda: pcn.make_plan(Mlp(), None, pcn.PCNConfig(rank=2)).suggest_widths(Mlp()),
        "graph is of type Mlp: give what pcn.trace",
    ),
    "no graph": (
        lambda: pcn.make_plan(Mlp(), None, pcn.PCNConfig(rank=2)).narrowed(None, {}),
        "graph is of type NoneType: give what pcn.trace",
    ),
    "a number for what was measured": (
        lambda: pcn.make_plan(Mlp(), pcn.analyze(Mlp(), [X]), pcn.Budget(step_ms=0.5), measured=3),
        "measured=3: give what pcn.measure_costs",
    ),
    "more trained outputs than there are": (
        lambda: pcn.make_plan(Mlp(), None, pcn.PCNConfig(2, layers={"fc2": pcn.LayerRule(8, output_rank=100)})),
        "'fc2' is asked for output_rank 100, but has 24 outputs: give at most these",
    ),
    "a number for a plan's text": (lambda: pcn.Plan.from_json(3), "the plan is of type int: give the text"),
    "a number for a budget": (
        lambda: pcn.fit_budget(Mlp(), pcn.analyze(Mlp(), [X]), 0.5),
        r"budget=0.5: give a Budget, such as Budget\(params=0.25\)",
    ),
    "a configuration for a budget": (
        lambda: pcn.measure_costs(Mlp(), X, pcn.PCNConfig(), times=False),
        "give a Budget, such as",
    ),
    "a negative budget": (
        lambda: pcn.compress_(Mlp(), [X], params=-1),
        "params=-1: give a number of them, or a fraction",
    ),
    "a budget as text": (lambda: pcn.Budget(flops="half"), "flops='half': give a number of them, or a fraction"),
    "channels dropped by text": (
        lambda: pcn.Budget(params=0.5, drop_channels="no"),
        "drop_channels='no': give",
    ),
    "patterns by number": (lambda: pcn.Budget(params=0.5, patterns=4), "patterns=4: give True or False"),
    "larger layers by text": (lambda: pcn.PCNConfig(skip_larger="no"), "skip_larger='no': give True or False"),
    "a worth by name": (lambda: pcn.Budget(params=0.5, worth="evenly"), r"give Response\(\), Evenly\(\), Hedged\(\)"),
    "a layer by number": (lambda: pcn.make_plan(Mlp(), None, pcn.PCNConfig(rank=2)).with_rank(0, 2), "no layer 0"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_other_mistakes(mistake: str) -> None:
    call, message = WRONG[mistake]
    with pytest.raises(PCNError, match=message):
        call()


class Holder:
    """An averaging wrapper that is no module itself, as some are."""

    def __init__(self, model: nn.Module) -> None:
        self.module = model


def test_an_averaged_copy_may_be_held_by_any_object() -> None:
    ema = Holder(Mlp())
    pcn.Switch(Mlp(), None, pcn.PCNConfig(rank=2), ema=ema).after_epoch(1, [vectors()])
    assert type(ema.module.fc2) is pcn.nn.PCLinear


class OutOfMemory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12))

    def forward(self, x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_device_that_is_full_says_so_itself() -> None:
    for call in (pcn.analyze, pcn.recalibrate_):
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            call(OutOfMemory(), [X])


def test_one_batch_is_asked_for_where_one_is_taken() -> None:
    with pytest.raises(StatisticsError, match=r"the batch in train mode, .* one batch, and forward=lambda"):
        pcn.measure_costs(Mlp(), torch.randn(2, 5), times=False)
