"""The wrapper goes on as the same object, with its arguments, around the changed model."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import pcn
from distributed.network import (
    BATCH,
    SMALL,
    NormNet,
    all_batches,
    alone,
    built,
    data,
    own_batches,
    parameters,
    rank,
    train,
)
from distributed.worker import everyones, near, raised, run_checks, same_everywhere
from pcn.distributed import state_hash
from pcn.layers import unwrap, wrapper_of
from pcn.nn import PCModule
from small import record

KNOWN = inspect.signature(DistributedDataParallel.__init__).parameters
BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in KNOWN else "broadcast_buffers"


def wrapped(model: nn.Module, **options: Any) -> DistributedDataParallel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # static_graph with find_unused_parameters is not needed, it says
        return DistributedDataParallel(model, **options)


def trains_as_one_process_does(model: nn.Module, **zero_grad: Any) -> None:
    """Train, switch, train on; one process with all of the batches ends at the same parameters."""
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    train(model, optimizer, range(3), **zero_grad)
    reference, its_optimizer = alone(model, optimizer)
    pcn.Switch(model, optimizer, SMALL).now(own_batches())
    stats = pcn.analyze(reference, all_batches())
    pcn.make_plan(reference, stats, SMALL).apply_(reference, stats, optimizer=its_optimizer)
    assert isinstance(unwrap(model).fc1, PCModule)
    assert not wrapper_of(model).named_module_buffers  # the bases are all that there is
    train(model, optimizer, range(3, 7), **zero_grad)
    train(reference, its_optimizer, range(3, 7), alone=True)
    for name, expected in parameters(reference).items():
        near(parameters(model)[name], expected, 1e-6)
    assert same_everywhere(state_hash(model, optimizer))


def check_gradients_are_averaged_once_with_any_arguments() -> None:
    for options in (
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
        {"find_unused_parameters": True, "bucket_cap_mb_list": [0.001, 0.002]},
        {"static_graph": True, "find_unused_parameters": True},
        {"process_group": dist.new_group()},
    ):
        trains_as_one_process_does(wrapped(built(), **options))
    trains_as_one_process_does(wrapped(built(), gradient_as_bucket_view=True), set_to_none=False)


def check_gradients_that_wait_for_the_others_follow() -> None:
    """A switch between two backward passes of one step, of which the first was not averaged yet."""
    model = wrapped(built())
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    reference, its_optimizer = alone(model, optimizer)

    def backward(model: nn.Module, step: int, part: slice) -> None:
        inputs, labels = data(step)
        nn.functional.cross_entropy(model(inputs[part]), labels[part]).backward()

    own = slice(rank() * BATCH, (rank() + 1) * BATCH)
    with model.no_sync():
        backward(model, 0, own)
    backward(reference, 0, slice(None))
    pcn.Switch(model, optimizer, SMALL).now(own_batches())
    stats = pcn.analyze(reference, all_batches())
    pcn.make_plan(reference, stats, SMALL).apply_(reference, stats, optimizer=its_optimizer)
    backward(model, 1, own)
    backward(reference, 1, slice(None))
    for name, parameter in unwrap(model).named_parameters():
        near(parameter.grad, reference.get_parameter(name).grad, 1e-6)


def check_compiled_models_follow() -> None:
    trains_as_one_process_does(torch.compile(wrapped(built()), backend="eager"))
    trains_as_one_process_does(wrapped(torch.compile(built(), backend="eager")))


def check_the_object_its_arguments_and_its_hooks_stay() -> None:
    model = wrapped(built(NormNet), bucket_cap_mb=3, find_unused_parameters=True, **{BUFFERS: False})
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    called: list[str] = []
    handle = model.register_forward_pre_hook(lambda *_: called.append("before"))
    model.register_state_dict_post_hook(lambda *_: called.append("saved"))
    model.mine = "a note"
    model.eval()
    pcn.Switch(model, None, SMALL).now(own_batches())
    assert (model.bucket_bytes_cap, model.bucket_bytes_cap_default) == (3 * 2**20, False)
    assert (model.find_unused_parameters, model.broadcast_buffers, model.training) == (True, False, False)
    assert (model.mine, [hook.__name__ for hook, _ in model._comm_hooks]) == ("a note", ["fp16_compress_hook"])
    model(own_batches()[0]).sum().backward()
    assert model.module.fc1.weight.grad is not None
    assert same_everywhere(model.module.fc1.weight.grad.tolist())
    handle.remove()
    model(own_batches()[0])
    model.state_dict()
    assert called == ["before", "saved"]


def check_bases_stay_out_of_what_is_sent_in_every_step() -> None:
    model = built(NormNet)
    model.register_buffer("noise", torch.full((2,), float(rank())))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["noise"])
    model = wrapped(model)
    pcn.Switch(model, None, SMALL).now(own_batches())
    sent = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert set(model.named_module_buffers) == sent
    with torch.no_grad():
        for buffer in model.buffers():
            buffer += rank() + 1  # so that all ranks differ
    model.eval()(own_batches()[0])
    held = {name: buffer.tolist() for name, buffer in model.module.named_buffers()}
    assert held.keys() > sent | {"fc1.basis", "fc1.mean", "noise"}
    for name, values in held.items():
        assert same_everywhere(values) == (name in sent), name


def check_bases_of_a_model_that_was_switched_before_it_was_wrapped_stay_out_too() -> None:
    plan = pcn.compress_(built(NormNet), all_batches(), SMALL)
    model = built(NormNet)
    plan.reshape_(model)
    model = wrapped(model)
    assert "fc1.basis" in model.named_module_buffers
    assert pcn.Switch(model, None, SMALL).plan == plan
    model(own_batches()[0])
    assert "fc1.basis" not in model.named_module_buffers
    assert "norm.running_mean" in model.named_module_buffers
    assert same_everywhere(model.module.fc1.basis.tolist())


def check_batch_norm_is_the_first_ranks_unless_it_is_each_ranks_own() -> None:
    for synced in (True, False):
        model = wrapped(built(NormNet), **{BUFFERS: synced})
        with torch.no_grad():
            model.module.norm.running_mean += rank()
        pcn.Switch(model, None, SMALL).now(own_batches())
        means = everyones(model.module.norm.running_mean.mean().item())
        assert [round(mean - means[0]) for mean in means] == [0 if synced else number for number in range(len(means))]
        assert same_everywhere(parameters(model)["conv2.weight"].tolist())
        assert same_everywhere(model.module.fc1.basis.tolist())


def check_what_cannot_be_carried_is_refused_first() -> None:
    stateful, builtin, delayed, backward, mixed = (wrapped(built()) for _ in range(5))
    stateful.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
    builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    delayed._delay_all_reduce_params.append(delayed.module.fc1.weight)
    backward.module.fc1.weight._in_backward_optimizers = []
    mixed.mixed_precision = "what needs a GPU"
    for model, text in (
        (stateful, "PowerSGDState"),
        (builtin, "BuiltinCommHookType.ALLREDUCE"),
        (delayed, "reduced later"),
        (backward, "backward pass"),
        (mixed, "torch.autocast"),
    ):
        before = record(model.module)
        error = raised(lambda model=model: pcn.Switch(model, None, SMALL).now(own_batches()))
        assert isinstance(error, pcn.PlanError)
        assert text in str(error)
        assert "wrap that again afterwards" in str(error)
        assert record(model.module) == before


def check_what_a_refusal_says_to_do_works() -> None:
    model = wrapped(built())
    model.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    pcn.Switch(model.module, optimizer, SMALL, group=model.process_group).now(own_batches())
    reference, its_optimizer = alone(model, optimizer)
    model = wrapped(model.module)
    train(model, optimizer, range(4))
    train(reference, its_optimizer, range(4), alone=True)
    for name, expected in parameters(reference).items():
        near(parameters(model)[name], expected, 1e-9)


if __name__ == "__main__":
    run_checks(globals())
