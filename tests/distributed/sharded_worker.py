"""Sharded models are refused before anything changes, and the way around that stands in the docs."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.placement_types import Shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

import pcn
from distributed.network import SMALL, all_batches, built, data, own_batches, size, train
from distributed.worker import near, raised, run_checks
from pcn.distributed import gather_, shard_
from pcn.nn import PCModule

DOCS = Path(__file__).parents[2] / "docs" / "distributed.md"


def shard(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (size(),))
    for layer in (model.conv2, model.fc1):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.detach().full_tensor() if isinstance(p, DTensor) else p.detach() for n, p in model.named_parameters()}


def look(model: nn.Module) -> object:
    return pcn.analyze(model, all_batches())


def save(model: nn.Module) -> object:
    return pcn.save(model, "nowhere")


def check_gradients_that_are_being_accumulated_go_along() -> None:
    model, plain = shard(built()), built()
    model(data(0)[0]).square().mean().backward()
    expected = {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}
    gather_(model, plain)
    for name, parameter in plain.named_parameters():
        near(parameter.grad, expected[name], 0)
    shard_(plain, None, shard)
    for name, parameter in plain.named_parameters():
        assert isinstance(parameter.grad, DTensor)
        near(parameter.grad.full_tensor(), expected[name], 0)


def check_sharded_models_and_optimizers_are_refused() -> None:
    sharded, spread = shard(built()), built()
    weight = distribute_tensor(spread.fc1.weight.detach(), init_device_mesh("cpu", (size(),)), [Shard(0)])
    spread.fc1.weight = nn.Parameter(weight)
    plain = DistributedDataParallel(built())
    zero = ZeroRedundancyOptimizer(plain.parameters(), SGD, lr=0.1)
    stats = pcn.analyze(built(), all_batches())
    plan = pcn.make_plan(built(), stats, SMALL)
    for model, optimizer, text in (
        (sharded, None, "pcn.distributed.gather_"),
        (spread, None, "'fc1.weight' is a DTensor"),
        (FullyShardedDataParallel(built(), device_id=torch.device("cpu")), None, "FullyShardedDataParallel"),
        (plain, zero, "ZeroRedundancyOptimizer"),
    ):
        kept = {name: id(tensor) for name, tensor in model.named_parameters()}
        for error in (
            raised(lambda m=model, o=optimizer: pcn.Switch(m, o, SMALL, group=dist.group.WORLD)),
            raised(lambda m=model, o=optimizer: plan.apply_(m, stats, optimizer=o)),
            raised(lambda m=model, o=optimizer: pcn.compress_(m, all_batches(), params=0.5, optimizer=o)),
            *([] if optimizer else [raised(lambda m=model, do=do: do(m)) for do in (look, pcn.to_plain, save)]),
        ):
            assert isinstance(error, pcn.PlanError)
            assert text in str(error)
        assert {name: id(tensor) for name, tensor in model.named_parameters()} == kept


def check_a_sharded_model_switches_with_its_optimizer_and_schedule() -> None:
    """The lines of the docs, against one process that has all batches."""
    for make in (lambda p: AdamW(p, 0.01), lambda p: SGD(p, 0.1, momentum=0.9)):
        reference, model = built(), shard(built())
        optimizers = make(reference.parameters()), make(model.parameters())
        schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10) for optimizer in optimizers]
        train(reference, optimizers[0], range(3), alone=True)
        train(model, optimizers[1], range(3))
        model(data(0)[0])  # leaves the outermost parameters whole
        stats = pcn.analyze(reference, all_batches())
        pcn.make_plan(reference, stats, SMALL).apply_(reference, stats, optimizer=optimizers[0])
        lines = re.search(r"```python\n(plain = .*?)```", DOCS.read_text(), re.DOTALL)
        assert lines is not None
        names = {"model": model, "optimizer": optimizers[1], "build": built, "shard": shard, "config": SMALL}
        names |= {"pcn": pcn, "torch": torch, "batches": own_batches()}
        exec(lines[1], names)
        model = names["model"]
        assert isinstance(model, FSDPModule)
        assert isinstance(model.fc1, PCModule)
        assert isinstance(model.fc1.weight, DTensor)
        assert names["optimizer"] is optimizers[1]
        for schedule in schedules:
            schedule.step()
        train(reference, optimizers[0], range(3, 6), alone=True)
        train(model, optimizers[1], range(3, 6))
        for name, parameter in whole(model).items():
            near(parameter, dict(reference.named_parameters())[name].detach(), 1e-6)
        state = optimizers[1].state[model.fc1.weight]
        assert all(isinstance(value, DTensor) for value in state.values() if value.ndim)


def check_there_and_back_changes_nothing() -> None:
    model = shard(built())
    first, *rest = model.parameters()
    optimizers = [SGD([first], 0.1, momentum=0.9), AdamW(rest, 0.01)]
    for optimizer in optimizers:
        train(model, optimizer, range(3))
    before = whole(model)
    states = copy.deepcopy(_states(optimizers))
    plain = built(seed=1)
    gather_(model, plain, optimizers)
    assert not any(isinstance(tensor, DTensor) for tensor in plain.parameters())
    shard_(plain, optimizers, shard)
    after = _states(optimizers)
    assert all(torch.equal(before[name], tensor) for name, tensor in whole(plain).items())
    assert str(states) == str(after)


def check_a_sharded_run_resumes_from_behind_the_switch() -> None:
    model = built()
    optimizer = AdamW(model.parameters(), 0.01)
    train(model, optimizer, range(2), alone=True)
    plan = pcn.Switch(model, optimizer, SMALL, group=dist.group.WORLD).now(own_batches())
    shard_(model, optimizer, shard)
    train(model, optimizer, range(2, 4))
    full = StateDictOptions(full_state_dict=True)
    weights, history = copy.deepcopy(get_state_dict(model, optimizer, options=full))
    resumed = built(seed=1)
    plan.reshape_(resumed)
    shard(resumed)
    its_optimizer = AdamW(resumed.parameters(), 0.01)
    set_state_dict(resumed, its_optimizer, model_state_dict=weights, optim_state_dict=history, options=full)
    for one, other in ((model, optimizer), (resumed, its_optimizer)):
        train(one, other, range(4, 6))
    for name, parameter in whole(resumed).items():
        assert torch.equal(parameter, whole(model)[name])


def check_models_that_do_not_belong_together_are_told() -> None:
    model = shard(built())
    error = raised(lambda: gather_(model, nn.Linear(2, 2)))
    assert "build the plain model as the sharded one was" in str(error)
    stranger = SGD(built().parameters(), 0.1)
    assert "not the model's" in str(raised(lambda: gather_(model, built(), stranger)))


def _states(optimizers: list[Optimizer]) -> list[list[dict[str, torch.Tensor]]]:
    held = [[p for group in optimizer.param_groups for p in group["params"]] for optimizer in optimizers]
    pairs = zip(optimizers, held, strict=True)
    return [[{k: _full(v) for k, v in optimizer.state[p].items()} for p in own] for optimizer, own in pairs]


def _full(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


if __name__ == "__main__":
    run_checks(globals())
