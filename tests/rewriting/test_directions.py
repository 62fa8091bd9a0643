"""Other bases than PCA's, and output bases: what they change, what they must not, and that all else follows them."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from pcn.config import BASES, STEPPERS
from pcn.nn import PCModule
from pcn.rewriting import directions
from small import ConvNet, Mlp

KINDS = {"dense": (Mlp, (12,)), "convolutional": (ConvNet, (3, 8, 8))}


def built(kind: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, shape = KINDS[kind]
    return make().double().eval(), torch.randn(64, *shape, dtype=torch.double) + 0.3


@settings(max_examples=24, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    st.sampled_from(BASES),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([None, *STEPPERS]),
)
def test_full_rank_changes_nothing(kind: str, basis: str, precondition: float, sized_for: Any) -> None:
    model, x = built(kind)
    expected = model(x)
    how = {"basis": basis, "precondition": precondition, "sized_for": sized_for}
    config = pcn.PCNConfig(rank=1.0, skip_larger=False, **how)
    plan = pcn.compress_(model, [x], config)
    assert len(plan.transformed) == len(plan.layers)
    torch.testing.assert_close(model(x), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("basis", BASES)
def test_preconditioning_changes_the_coordinates_and_not_the_function(kind: str, basis: str) -> None:
    model, x = built(kind)
    stats = pcn.analyze(model, [x], gradients=True)
    ends = []
    for precondition in (0.0, 0.5, 1.0):
        small = copy.deepcopy(model)
        config = pcn.PCNConfig(rank=0.5, basis=basis, precondition=precondition, skip_larger=False)
        pcn.make_plan(model, stats, config).apply_(small, stats)
        along = small.fc2.basis
        ends.append((small(x), small.fc2.weight.detach(), along.T @ stats.covariance("fc2")[0] @ along))
    (expected, plain, before), *others = ends
    for found, weight, covariance in others:
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
        assert not torch.allclose(weight, plain, rtol=1e-3)
        torch.testing.assert_close(covariance.trace(), before.trace())  # the inputs as a whole are as large as before
        torch.testing.assert_close(covariance, covariance.diag().diag(), rtol=0, atol=1e-9 * float(before.trace()))
    spreads = [float(torch.linalg.cond(covariance)) for *_, covariance in ends]
    assert spreads[1] == pytest.approx(spreads[0] ** 0.5, rel=0.05)
    assert spreads[2] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("power", [0.25, 1.0])
def test_a_step_of_gradient_descent_is_preconditioned_by_the_inputs_covariance(basis: str, power: float) -> None:
    model, x = built("dense")
    stats = pcn.analyze(model, [x], gradients=True)
    values, vectors = torch.linalg.eigh(stats.covariance("fc2")[0])
    model(x).square().sum().backward()
    values = values + directions.FLOOR * values.mean()
    expected = model.fc2.weight.grad - torch.outer(model.fc2.bias.grad, stats.mean("fc2"))
    expected = expected @ (vectors * values**-power) @ vectors.T
    config = pcn.PCNConfig(rank=1.0, basis=basis, precondition=power, skip_larger=False)
    plan = pcn.make_plan(model, stats, config)
    plan.apply_(model, stats)
    moved = model.fc2.weight.grad @ model.fc2.basis.T
    torch.testing.assert_close(moved / moved.norm(), expected / expected.norm(), rtol=1e-6, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.integers(1, 7))
def test_no_other_directions_of_that_number_come_nearer_to_a_linear_layers_output(seed: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, mix = (torch.randn(size, 8, generator=generator, dtype=torch.double) for size in (200, 8))
    weight = torch.randn(1, 6, 8, 1, generator=generator, dtype=torch.double)
    covariance = torch.cov((rows @ mix).T)[None]
    found = directions.balanced(covariance, directions.response_gram(weight), rank)
    response = weight[..., 0] @ covariance @ weight[..., 0].mT

    def error(along: Tensor, back: Tensor) -> float:
        lost = torch.eye(8, dtype=torch.double) - back @ along.mT
        return float((weight[0, ..., 0] @ lost @ covariance[0] @ lost.mT @ weight[0, ..., 0].mT).trace())

    best = float(torch.linalg.eigvalsh(response)[0, : max(0, 6 - rank)].sum())
    assert error(found.along[0], found.back[0]) == pytest.approx(best, rel=1e-5, abs=1e-6 * float(response[0].trace()))
    pca = torch.linalg.eigh(covariance)[1][0].flip(-1)[:, :rank]
    assert error(found.along[0], found.back[0]) <= error(pca, pca) * (1 + 1e-9) + 1e-9


def balanced_error(covariance: Tensor, gram: Tensor, along: Tensor, back: Tensor) -> float:
    """The mean of (x - x̂)ᵀ Γ (x - x̂) with x̂ recovered from the coordinates."""
    lost = torch.eye(len(gram), dtype=torch.double) - back @ along.mT
    return float((gram @ lost @ covariance @ lost.mT).trace())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.integers(1, 7), st.integers(1, 9))
def test_no_other_directions_of_that_number_lose_less_of_what_matters(seed: int, rank: int, seen: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    spread, slopes = (torch.randn(size, 8, generator=generator, dtype=torch.double) for size in (20, seen))
    covariance, gram = spread.T @ spread, slopes.T @ slopes
    found = directions.balanced(covariance[None], gram[None], rank)
    error = balanced_error(covariance, gram, found.along[0], found.back[0])
    worst = float((covariance @ gram).trace())
    values = torch.linalg.eigvals(covariance @ gram).real.sort(descending=True).values
    assert error == pytest.approx(float(values[rank:].sum()), rel=1e-6, abs=1e-7 * worst)
    for _ in range(20):
        other = torch.randn(8, rank, generator=generator, dtype=torch.double)
        back = covariance @ other @ torch.linalg.inv(other.T @ covariance @ other)  # the best way back from there
        assert error <= balanced_error(covariance, gram, other, back) + 1e-7 * worst


def test_where_too_few_directions_matter_those_of_most_variance_complete_them() -> None:
    variances = torch.tensor([1.0, 9.0, 4.0, 2.0, 8.0], dtype=torch.double)
    gram = torch.zeros(5, 5, dtype=torch.double)
    gram[0, 0] = 3.0  # only the first channel matters
    along = directions.balanced(variances.diag()[None], gram[None], 3).along[0]
    torch.testing.assert_close(along @ along.T, torch.tensor([1.0, 1, 0, 0, 1]).double().diag(), rtol=0, atol=1e-6)
    blind = directions.balanced(variances.diag()[None], torch.zeros(1, 5, 5).double(), 2).along[0]
    torch.testing.assert_close(blind @ blind.T, torch.tensor([0.0, 1, 0, 0, 1]).double().diag(), rtol=0, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.integers(1, 9), st.integers(2, 12))
def test_with_gradients_that_weigh_all_outputs_alike_the_balanced_basis_is_the_responses(
    seed: int, rank: int, outputs: int
) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(9, outputs)).double()
    x = torch.randn(5 * outputs, 9, dtype=torch.double) @ torch.randn(9, 9, dtype=torch.double)

    def each_in_turn(model: nn.Module, batch: Tensor) -> Tensor:
        """A loss whose gradients by the output are the unit vectors, so that Γ is WᵀW."""
        units = torch.eye(outputs, dtype=torch.double).repeat(5, 1) * outputs**0.5
        return (model(batch) * units).sum(1).mean()

    stats = pcn.analyze(model, [x], gradients=each_in_turn)
    gram = model[0].weight.T @ model[0].weight
    torch.testing.assert_close(stats.gradient_moments("0")[0], gram.detach(), rtol=1e-9, atol=1e-12)
    found = []
    for basis in ("response", "balanced"):
        small = copy.deepcopy(model)
        config = pcn.PCNConfig(rank=rank, basis=basis, skip_larger=False)
        pcn.make_plan(small, stats, config).apply_(small, stats)
        found.append((small(x), small[0].basis @ torch.linalg.pinv(small[0].basis)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=1e-5)
    # Beyond as many directions as there are outputs a ridge of 1e-9 decides, and rounding is seen.
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=1e-9 if rank <= outputs else 1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_balanced_basis_is_the_same_every_time_and_asked_for_by_everybody(kind: str) -> None:
    config = pcn.PCNConfig(rank=0.5, basis="balanced", skip_larger=False)
    ends = []
    for through in ("compress", "compress", "switch"):
        model, x = built(kind)
        if through == "compress":
            pcn.compress_(model, iter([x]), config)
        else:
            pcn.Switch(model, None, config).now(iter([x]))
        ends.append(model.state_dict())
    for other in ends[1:]:
        assert other.keys() == ends[0].keys()
        assert all(torch.equal(tensor, other[name]) for name, tensor in ends[0].items())
    model, x = built(kind)
    balanced = pcn.PCNConfig(basis="balanced", skip_larger=False)
    plan = pcn.compress_(model, iter([x]), pcn.Budget(params=0.6, step=2, worth=pcn.Taylor(), config=balanced))
    assert {layer.basis for layer in plan.transformed} == {"balanced"}


def test_random_directions_know_only_the_layers_name() -> None:
    first, second = (torch.eye(6, dtype=torch.double)[None] * scale for scale in (1.0, 5.0))
    a, b, c = (directions.random(*given) for given in ((first, 3, "fc"), (second, 3, "fc"), (first, 3, "other")))
    assert torch.equal(a.along, b.along)
    assert not torch.allclose(a.along, c.along)
    torch.testing.assert_close(a.along.mT @ a.along, torch.eye(3, dtype=torch.double)[None])


def low_rank_outputs(model: nn.Module) -> nn.Module:
    """Have every wide layer put out only what three of its outputs say."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.out_features > 5:
            mix = torch.randn(module.out_features, 3, dtype=torch.double)
            module.weight.data = mix @ module.weight.data[:3]
    return model


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("precondition", [0.0, 0.5])
def test_an_output_basis_that_holds_all_outputs_changes_nothing_and_gradients_follow(
    basis: str, precondition: float
) -> None:
    model, x = built("dense")
    low_rank_outputs(model)
    expected = model(x)
    expected.square().sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), 0.0, momentum=0.9)
    optimizer.step()  # at a rate of 0: the weights stay, and the momentum is the gradient
    config = pcn.PCNConfig(
        rank=1.0, output_rank=3, basis=basis, precondition=precondition, skip_larger=False, exclude=["fc3"]
    )
    pcn.compress_(model, [x], config, optimizer=optimizer)
    assert isinstance(model.fc2, PCModule)
    assert model.fc2.weight.shape == (3, 24)
    carried = {name: p.grad.clone() for name, p in model.named_parameters()}
    optimizer.zero_grad()
    found = model(x)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
    found.square().sum().backward()
    for name, parameter in model.named_parameters():
        near = {"rtol": 1e-6, "atol": 1e-6 * float(parameter.grad.norm())}
        torch.testing.assert_close(carried[name], parameter.grad, **near)
        torch.testing.assert_close(optimizer.state[parameter]["momentum_buffer"], parameter.grad, **near)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drops", [False, True])
def test_saving_folding_and_plain_layers_follow(kind: str, drops: bool, tmp_path: Path) -> None:
    model, x = built(kind)
    layers = {"fc1": pcn.LayerRule(rank=6, keep_outputs=12, output_rank=5)} if drops else {}
    config = pcn.PCNConfig(
        rank=0.7, output_rank=0.5, basis="response", precondition=0.5, skip_larger=False, layers=layers
    )
    plan = pcn.compress_(model, [x], config)
    assert all(layer.output_rank is not None for layer in plan.transformed)
    expected = model(x)
    trained = sum(p.numel() for p in model.parameters()) - sum(
        p.numel() for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()
    )
    assert plan.trainable_after == trained
    assert pcn.Plan.from_json(plan.to_json()) == plan
    pcn.save(model, tmp_path / "saved")
    loaded = pcn.load(KINDS[kind][0]().double().eval(), tmp_path / "saved")
    torch.testing.assert_close(loaded(x), expected, rtol=0, atol=0)
    torch.testing.assert_close(pcn.to_plain(model)(x), expected, rtol=1e-9, atol=1e-9)
    pcn.fold_(model)
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)


def test_the_block_order_has_bases_of_its_own() -> None:
    model, x = built("dense")
    with pytest.raises(pcn.ConfigError, match="'kept_block' makes PCA bases"):
        pcn.compress_(model, [x], pcn.PCNConfig(rank=4, basis="response", order="kept_block"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"basis": "best"}, "choose one of pca, response, balanced, random"),
        ({"precondition": 2.0}, "from 0"),
        ({"output_rank": 0}, "at least 1"),
        ({"output_rank": pcn.ExplainedVariance(0.5)}, "a whole number of at least 1, or a fraction"),
    ],
)
def test_what_cannot_be_is_said(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(pcn.ConfigError, match=said):
        pcn.PCNConfig(**wrong)


def test_a_basis_that_nobody_knows_is_refused() -> None:
    model, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(40, 4)
    stats = pcn.analyze(model, [x])
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=2, basis="response", skip_larger=False))
    unknown = replace(plan, layers={name: replace(layer, basis="mine") for name, layer in plan.layers.items()})
    with pytest.raises(pcn.PlanError, match=r"'0' has the basis 'mine' in the plan.*give one of pca, response"):
        unknown.apply_(model, stats)


@pytest.mark.parametrize("basis", BASES)
def test_an_input_that_never_varies_stays_finite(basis: str) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    nn.init.constant_(model[0].bias, -100.0)  # no ReLU ever opens
    x = torch.randn(32, 4)
    expected = model(x)
    pcn.compress_(model, [x], pcn.PCNConfig(rank=2, basis=basis, precondition=1.0, skip_larger=False, exclude=["0"]))
    torch.testing.assert_close(model(x), expected)


def test_a_basis_that_needs_the_covariance_is_refused_for_very_wide_inputs() -> None:
    model = nn.Sequential(nn.Linear(8200, 4))
    with pytest.raises(pcn.ConfigError, match="needs the whole covariance of its 8,200 inputs"):
        pcn.make_plan(model, None, pcn.PCNConfig(rank=2, basis="response"))
