"""The switch of several processes is that of one process with all batches, and the same on all of them."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW

import pcn
from distributed.network import (
    BATCH,
    SMALL,
    Net,
    NormNet,
    all_batches,
    alone,
    built,
    data,
    own_batches,
    parameters,
    rank,
    size,
    train,
)
from distributed.worker import everyones, near, raised, run_checks, same_everywhere
from pcn.distributed import state_hash
from pcn.layers import unwrap
from pcn.nn import PCModule
from pcn.switching import Progress
from small import record


def same_as_alone(model: nn.Module, reference: nn.Module, tolerance: float = 1e-6) -> None:
    for name, expected in parameters(reference).items():
        near(parameters(model)[name], expected, tolerance)


def check_all_ranks_end_alike_and_as_one_process_with_all_batches() -> None:
    for make in (lambda p: SGD(p, 0.1, momentum=0.9), lambda p: AdamW(p, 0.01), lambda p: Adam(p, 0.01, amsgrad=True)):
        model = DistributedDataParallel(built())
        optimizer = make(model.parameters())
        train(model, optimizer, range(4))
        reference, its_optimizer = alone(model, optimizer)
        switch = pcn.Switch(model, optimizer, SMALL, at=2)
        assert switch.after_epoch(1, own_batches()) is None
        plan = switch.after_epoch(2, own_batches)
        stats = pcn.analyze(reference, all_batches(), exclude=SMALL.exclude)
        expected = pcn.make_plan(reference, stats, SMALL)
        expected.apply_(reference, stats, optimizer=its_optimizer)
        assert plan == expected
        assert plan.slices
        same_as_alone(model, reference)
        assert same_everywhere(state_hash(model, optimizer))
        assert same_everywhere(plan.to_json())
        train(model, optimizer, range(4, 9))
        train(reference, its_optimizer, range(4, 9), alone=True)
        same_as_alone(model, reference)
        assert same_everywhere(state_hash(model, optimizer))


def check_two_optimizers_go_along_on_all_ranks() -> None:
    model = DistributedDataParallel(built())
    first, *rest = model.parameters()
    optimizers = [SGD([first], 0.1, momentum=0.9), AdamW(rest, 0.01)]
    for optimizer in optimizers:
        train(model, optimizer, range(2))
    pcn.Switch(model, optimizers, SMALL, strict=True).now(own_batches())
    held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))
    for optimizer in optimizers:
        train(model, optimizer, range(2, 4))
    assert same_everywhere(state_hash(model, optimizers))


def check_a_budget_and_a_group_without_a_wrapper() -> None:
    model = built()
    plan = pcn.Switch(model, None, params=0.85, group=dist.group.WORLD).now(own_batches())
    reference = built()
    assert plan == pcn.compress_(reference, all_batches(), params=0.85)
    same_as_alone(model, reference)
    assert "not in DistributedDataParallel" in str(raised(lambda: pcn.Switch(model, None)))


class Waiting(Net):
    """Waits for the other ranks while it runs."""

    def forward(self, x: Tensor) -> Tensor:
        dist.all_reduce(x.new_zeros(1))
        return super().forward(x)


def check_patterns_of_taps_are_measured_by_all_ranks() -> None:
    wish = pcn.PCNConfig(rank=0.5, kernel_rank=2, skip_larger=False)
    model = DistributedDataParallel(built(Waiting))
    plan = pcn.Switch(model, None, wish).now(own_batches())
    assert plan.layers["conv2"].kernel_rank == 2
    assert same_everywhere(state_hash(model))
    reference = built()
    firsts = torch.cat([data(100)[0][one * BATCH : (one + 1) * BATCH] for one in range(size())])
    stats = pcn.analyze(reference, [firsts, *all_batches(range(101, 104))])
    pcn.make_plan(reference, stats, wish).apply_(reference, stats)
    near(unwrap(model)(firsts), reference(firsts), 1e-6)


PATTERNS = pcn.Budget(params=0.75, step=1, patterns=True, config=pcn.PCNConfig(exclude=("conv1", "fc*")))


def check_all_ranks_choose_how_many_patterns_there_are() -> None:
    sharp = data(100)[0]
    smooth = sharp.mean((2, 3), keepdim=True) + 0.1 * sharp
    batches = [(smooth if one == 0 else sharp)[one * BATCH : (one + 1) * BATCH] for one in range(size())]

    def forms(plan: pcn.Plan) -> dict[str, tuple[int | None, int | None, str | None]]:
        return {layer.name: (layer.rank, layer.kernel_rank, layer.note) for layer in plan.layers.values()}

    def expected(first: Tensor, others: list[Tensor]) -> pcn.Plan:
        reference = built()
        return pcn.make_plan(reference, pcn.analyze(reference, [first, *others]), PATTERNS)

    model = DistributedDataParallel(built(Waiting))
    plan = pcn.Switch(model, None, PATTERNS).now([batches[rank()]])
    assert plan.layers["conv2"].kernel_rank is not None
    assert forms(plan) == forms(expected(torch.cat(batches), []))
    assert forms(plan) != forms(expected(batches[0], batches[1:]))  # what one rank would choose by itself
    assert same_everywhere(state_hash(model))


def check_ranks_without_a_batch_choose_patterns_too() -> None:
    for empty in (0, size() - 1):
        model = DistributedDataParallel(built(NormNet))
        plan = pcn.Switch(model, None, PATTERNS).now([] if rank() == empty else own_batches())
        assert plan.layers["conv2"].kernel_rank is not None
        assert sum(p.numel() for p in model.parameters()) <= 0.75 * sum(p.numel() for p in built(NormNet).parameters())
        assert same_everywhere(state_hash(model))


def check_ranks_without_a_batch_take_part() -> None:
    for empty in (0, size() - 1):
        model = DistributedDataParallel(built())
        plan = pcn.Switch(model, None, SMALL).now([] if rank() == empty else own_batches())
        assert plan.layers["conv1"].kept_outputs == 6  # traced on another rank, if need be
        assert same_everywhere(state_hash(model))


def check_the_first_rank_says_when() -> None:
    @dataclass
    class Moody:
        when: bool

        def due(self, progress: Progress) -> bool:
            return self.when

    for mood in (True, False):
        switch = pcn.Switch(DistributedDataParallel(built()), None, SMALL, at=Moody(mood == (rank() == 0)))
        assert (switch.after_step(3, own_batches()) is not None) == mood
        switch = pcn.Switch(DistributedDataParallel(built()), None, SMALL, at=Moody(mood == (rank() == 0)))
        assert (switch.after_epoch(3, own_batches()) is not None) == mood
    switch = pcn.Switch(DistributedDataParallel(built()), None, SMALL, at=pcn.AccuracySlows())
    seen = [
        switch.after_epoch(n, own_batches(), accuracy=a if rank() == 0 else None) for n, a in enumerate((1, 5, 5.5), 1)
    ]
    assert [plan is not None for plan in seen] == [False, False, True]
    switch = pcn.Switch(DistributedDataParallel(built()), None, SMALL, at=pcn.AccuracySlows())
    error = raised(lambda: switch.after_epoch(1, [], accuracy=None if rank() == 0 else 0.5))
    assert "needs accuracy" in str(error)
    switch = pcn.Switch(DistributedDataParallel(built()), None, SMALL, at=pcn.SubspacesSettle())
    assert [switch.after_epoch(n, own_batches()) is not None for n in (1, 2)] == [False, True]
    assert same_everywhere(switch.state_dict()["movements"])
    switch = pcn.Switch(DistributedDataParallel(built()), None, SMALL, at=pcn.AfterStep(2))
    assert [switch.after_step(n, own_batches()) is not None for n in (1, 2, 3)] == [False, True, False]
    switch = pcn.Switch(DistributedDataParallel(built()), None, SMALL, at=pcn.AfterStep(2 + rank()))
    assert [switch.after_step(n, own_batches()) is not None for n in (1, 2, 3)] == [False, True, False]


def check_steps_are_not_counted_where_ranks_do_as_many_as_they_have_batches() -> None:
    model = DistributedDataParallel(built())
    by_step, by_epoch = (pcn.Switch(model, None, SMALL, at=at) for at in (pcn.AfterStep(2), 1))
    with model.join():
        error = raised(lambda: by_step.after_step(1, own_batches()))
        assert by_epoch.after_step(1, own_batches()) is None
    assert isinstance(error, pcn.ConfigError)
    assert "inside model.join() one rank may be done" in str(error)
    assert by_epoch.after_epoch(1, own_batches()) is not None


def check_what_fails_on_one_rank_is_undone_on_all() -> None:
    model = DistributedDataParallel(built())
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    train(model, optimizer, range(2))
    before, state = record(model.module), state_hash(model, optimizer)
    model.module.stubborn = rank() == 1
    error = raised(lambda: pcn.Switch(model, optimizer, SMALL).now(own_batches()))
    assert isinstance(error, pcn.PlanError)
    assert "where is my layer?" in str(error)
    assert ("on rank 1: " in str(error)) == (rank() != 1)
    model.module.stubborn = False
    assert (record(model.module), state_hash(model, optimizer)) == (before, state)
    error = raised(lambda: pcn.Switch(model, optimizer, pcn.PCNConfig(exclude="nobody")).now(own_batches()))
    assert isinstance(error, pcn.ConfigError)
    error = raised(lambda: pcn.Switch(model, optimizer, SMALL).now(0 if rank() == 1 else own_batches()))
    assert "batches is of type int; give an iterable of batches" in str(error)
    assert (record(model.module), state_hash(model, optimizer)) == (before, state)
    train(model, optimizer, range(2, 4))
    pcn.Switch(model, optimizer, SMALL).now(own_batches())
    assert isinstance(model.module.fc1, PCModule)


def check_ranks_that_differ_before_are_told() -> None:
    model = DistributedDataParallel(built())
    with torch.no_grad():
        model.module.fc1.weight += rank()
    before = record(model.module)
    error = raised(lambda: pcn.Switch(model, None, SMALL).now(own_batches()))
    assert "different values of parameter 'fc1.weight'" in str(error)
    assert record(model.module) == before


def check_state_that_is_each_ranks_own_may_stay_so() -> None:
    model = built()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer.state[model.fc1.weight]["momentum_buffer"] = torch.full_like(model.fc1.weight, rank())
    pcn.Switch(model, optimizer, SMALL, group=dist.group.WORLD).now(own_batches())
    assert len(set(everyones(state_hash(model, optimizer)))) == size()
    assert same_everywhere(state_hash(model))


def check_batch_norm_is_recalibrated_on_all_batches() -> None:
    for empty in (None, 0):
        model = DistributedDataParallel(built(NormNet))
        reference, _ = alone(model, None)
        batches = all_batches() if empty is None else all_batches()[len(own_batches()) :]
        pcn.Switch(model, None, SMALL, recalibrate=True).now(iter([] if rank() == empty else own_batches()))
        stats = pcn.analyze(reference, batches, exclude=SMALL.exclude)
        pcn.make_plan(reference, stats, SMALL).apply_(reference, stats)
        assert pcn.recalibrate_(reference, batches) == len(batches)
        for name, expected in reference.norm.named_buffers():
            near(model.module.norm.get_buffer(name), expected, 1e-9)
        assert same_everywhere(state_hash(model))
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(built(NormNet))  # which must not wait for ranks with fewer batches
    assert pcn.recalibrate_(synced, own_batches()[: 2 * rank()], group=dist.group.WORLD) > 0
    assert same_everywhere(state_hash(synced))
    assert "forward" not in synced.norm.__dict__


def check_an_averaged_copy_follows() -> None:
    model = DistributedDataParallel(built())
    optimizer = AdamW(model.parameters(), 0.01)
    averaged = torch.optim.swa_utils.AveragedModel(unwrap(model))
    train(model, optimizer, range(2))
    averaged.update_parameters(unwrap(model))
    pcn.Switch(model, optimizer, SMALL, ema=averaged).now(own_batches())
    averaged.update_parameters(unwrap(model))
    assert same_everywhere(state_hash(averaged))


def check_a_resumed_run_ends_as_one_that_was_never_stopped() -> None:
    model = DistributedDataParallel(built(NormNet))
    optimizer = AdamW(model.parameters(), 0.01)
    switch = pcn.Switch(model, optimizer, SMALL)
    train(model, optimizer, range(3))
    switch.now(own_batches())
    train(model, optimizer, range(3, 5))
    saved = copy.deepcopy((switch.state_dict(), model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, range(5, 8))
    resumed = DistributedDataParallel(built(NormNet, seed=1))
    its_optimizer = AdamW(resumed.parameters(), 0.01)
    its_switch = pcn.Switch(resumed, its_optimizer, SMALL)
    for part, state in zip((its_switch, resumed, its_optimizer), saved, strict=True):
        part.load_state_dict(state)
    train(resumed, its_optimizer, range(5, 8))
    for name, expected in unwrap(model).state_dict().items():
        near(unwrap(resumed).state_dict()[name], expected, 0 if size() == 2 else 1e-9)  # with more, sums change order
    assert its_switch.after_epoch(9, own_batches()) is None


def check_only_the_switch_changes_a_wrapped_model() -> None:
    model = DistributedDataParallel(built())
    stats = pcn.analyze(model, own_batches(), group=dist.group.WORLD)
    plan = pcn.make_plan(model, stats, SMALL)
    before = record(model.module)
    for work in (
        lambda: plan.apply_(model, stats),
        lambda: plan.reshape_(model),
        lambda: pcn.compress_(model, own_batches(), SMALL),
        lambda: pcn.fold_(model),
    ):
        assert "pcn.Switch" in str(raised(work))
    assert record(model.module) == before


if __name__ == "__main__":
    run_checks(globals())
