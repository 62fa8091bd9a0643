"""What directions are worth: by the layer's response, by the loss, by measurement."""

from __future__ import annotations

from math import nan

import pytest
import torch
from torch import Tensor, nn

import pcn
from pcn.errors import PCNError
from pcn.planner import predicted_loss, prediction_divergence
from pcn.planner.divergence import output_distance
from pcn.planner.values import added_up, check_values
from small import ConvNet, Mlp


def built(make: type[nn.Module], *shape: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return make().double().eval(), torch.randn(48, *shape, dtype=torch.double)


def test_taylor_terms_are_those_of_every_sample_alone() -> None:
    model, x = built(ConvNet, 3, 8, 8)
    stats = pcn.analyze(model, [x])
    targets = torch.randint(5, (len(x),), generator=torch.Generator().manual_seed(1))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    parts = [(x[:16], targets[:16]), (x[16:], targets[16:])]  # batches of different sizes
    found = pcn.Taylor(loss)(model, stats, ["conv2", "fc1"], parts)
    expected = {"conv2": 0.0, "fc1": 0.0}
    for sample, target in zip(x, targets, strict=True):
        seen: dict[str, Tensor] = {}
        handles = [
            getattr(model, name).register_forward_pre_hook(lambda _, a, n=name, to=seen: to.__setitem__(n, a[0]))
            for name in expected
        ]
        value = loss(model, (sample[None], target[None]))
        gradients = torch.autograd.grad(value, list(seen.values()))
        for (name, inputs), gradient in zip(seen.items(), gradients, strict=True):
            rows, slopes = (t.flatten(2).movedim(1, -1).flatten(0, 1) if t.dim() > 2 else t for t in (inputs, gradient))
            basis = stats.basis(name, rows.shape[1])
            terms = (((rows - stats.mean(name)) @ basis) * (slopes @ basis)).sum(0)
            expected[name] = expected[name] + terms.square().detach() / len(x)
        for handle in handles:
            handle.remove()
    for name, each in expected.items():
        torch.testing.assert_close(found[name].diff(), each, rtol=1e-3, atol=1e-6 * float(each.max()))
        assert found[name][0] == 0


def test_a_direction_that_the_loss_does_not_read_is_worth_nothing_however_much_it_varies() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 3)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(6))
        model[1].weight[:, 0] = 0
    x = torch.randn(200, 6, dtype=torch.double) * torch.tensor([10.0, 1, 1, 1, 1, 1])
    stats = pcn.analyze(model, [x])
    worth = pcn.Taylor()(model, stats, ["1"], [x])["1"]
    assert float(worth[1]) < 1e-3 * float(worth[-1])
    assert float(pcn.Divergence(prediction_divergence)(model, stats, ["1"], [x])["1"][1]) < 1e-3
    assert float(pcn.Response()(model, stats, ["1"], ())["1"][1]) < 1e-3


@pytest.mark.parametrize("compare", [output_distance, prediction_divergence])
def test_measured_worth_is_the_distance_that_truncation_makes(compare: object) -> None:
    model, x = built(Mlp, 12)
    stats = pcn.analyze(model, [x])
    worth = pcn.Divergence(compare)(model, stats, ["fc2"], [x])["fc2"]
    before = model(x)

    def distance(rank: int) -> float:
        with torch.no_grad():
            inputs, basis = torch.tanh(model.fc1(x)), stats.basis("fc2", 24)[:, :rank]
            left = (inputs - stats.mean("fc2")) @ basis @ basis.T + stats.mean("fc2")
            return float(compare(before, model.fc3(torch.tanh(model.fc2(left)))))

    assert len(worth) == 25
    for rank in (0, 1, 3, 6, 12):
        assert float(worth[rank]) == pytest.approx(max(0.0, distance(0) - distance(rank)), abs=1e-9)
    assert float(worth[-1]) == pytest.approx(distance(0))
    assert bool((worth.diff() >= 0).all())


def mean_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


@pytest.mark.parametrize("worth", [pcn.Taylor(mean_loss), pcn.Divergence(), pcn.Divergence(prediction_divergence)])
@pytest.mark.parametrize("outputs", [1, 4])
def test_how_samples_are_cut_into_batches_means_nothing(worth: pcn.planner.Worth, outputs: int) -> None:
    if outputs == 1 and getattr(worth, "compare", None) is prediction_divergence:
        return  # no classes
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, outputs)).double()
    x = torch.randn(33, 8, dtype=torch.double)
    x[-1] *= 20
    stats = pcn.analyze(model, [x])
    whole, parts, empty = (worth(model, stats, ["2"], cut)["2"] for cut in ([x], x.split(16), [x[:0], x, x[:0]]))
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-9)
    assert torch.equal(empty, whole)
    with pytest.raises(pcn.StatisticsError, match="no batch"):
        worth(model, stats, ["2"], [x[:0]])


class Query(nn.Module):
    """A layer that reads one vector for all samples, and one that some batches have no sample for."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(96))
        self.asks, self.reads, self.expert, self.last = (nn.Linear(96, n) for n in (12, 12, 12, 5))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.reads(x) + self.asks(self.query)
        hidden = hidden.index_add(0, (x[:, 0] > 2).nonzero()[:, 0], self.expert(x[x[:, 0] > 2]))
        return self.last(nn.functional.pad(hidden.relu(), (0, 84)))


@pytest.mark.parametrize("worth", [pcn.Taylor(), pcn.Divergence(), pcn.Divergence(prediction_divergence)])
def test_a_layer_may_read_a_vector_alone_or_nothing_at_all(worth: pcn.planner.Worth) -> None:
    torch.manual_seed(0)
    model, batches = Query(), [torch.randn(64, 96) for _ in range(2)]
    batches[0][:, 0], batches[1][:, 0] = 0, 3
    stats = pcn.analyze(model, batches)
    found = worth(model, stats, ["asks", "reads", "expert"], batches)
    assert all(len(each) == 97 for each in found.values())
    assert float(found["reads"][-1]) > 0
    assert float(found["expert"][-1]) > 0


def test_a_model_without_numbers_to_compare_says_so() -> None:
    class Class(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).argmax(-1)

    x = torch.randn(32, 12)
    model = Class()
    with pytest.raises(pcn.ConfigError, match="no floating-point numbers: give compare="):
        pcn.Divergence()(model, pcn.analyze(model, [x]), ["fc2"], [x])


@pytest.mark.parametrize("worth", [pcn.Response(), pcn.Taylor(), pcn.Divergence()])
def test_measuring_leaves_no_trace(worth: pcn.planner.Worth) -> None:
    model, x = built(ConvNet, 3, 8, 8)
    model.train()
    stats = pcn.analyze(model, [x])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    worth(model, stats, list(stats.layers), [x])
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_predicted_labels_are_the_same_every_time() -> None:
    model, x = built(Mlp, 12)
    assert torch.equal(predicted_loss(model, x), predicted_loss(model, (x, None)))


@pytest.mark.parametrize("worth", [pcn.Taylor(), pcn.Divergence()])
def test_batches_that_are_used_up_are_missed(worth: pcn.planner.Worth) -> None:
    model, x = built(Mlp, 12)
    stats = pcn.analyze(model, [x])
    with pytest.raises(pcn.StatisticsError, match="no batch"):
        pcn.make_plan(model, stats, pcn.Budget(0.5, step=2, worth=worth))


@pytest.mark.parametrize("worth", [pcn.Response(), pcn.Taylor(), pcn.Divergence()])
@pytest.mark.parametrize("through", ["compress", "switch"])
def test_batches_that_can_be_gone_over_only_once_are_kept(worth: pcn.planner.Worth, through: str) -> None:
    plans = []
    for batches in (lambda x: iter([x]), lambda x: [x]):
        model, x = built(Mlp, 12)
        budget = pcn.Budget(0.6, step=2, worth=worth)
        if through == "compress":
            plans.append(pcn.compress_(model, batches(x), budget))
        else:
            plans.append(pcn.Switch(model, None, budget).now(batches(x)))
    assert plans[0] == plans[1]
    assert plans[0].transformed


def test_directions_that_are_not_looked_at_one_by_one_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = built(Mlp, 12)
    stats = pcn.analyze(model, [x])
    exact = pcn.Response()(model, stats, ["fc2"], ())["fc2"]
    monkeypatch.setattr("pcn.planner.values.WIDEST", 6)
    found = pcn.Response()(model, stats, ["fc2"], ())["fc2"]
    assert found.shape == exact.shape
    assert float(found[-1]) == pytest.approx(1.0)
    torch.testing.assert_close(found[:7], exact[:7], rtol=0.15, atol=0)
    measured = pcn.Divergence()(model, stats, ["fc2"], [x])["fc2"]
    assert measured.shape == exact.shape
    assert float(measured[6]) < float(measured[-1])


def test_a_worth_that_is_no_number_is_refused() -> None:
    model, x = built(Mlp, 12)
    stats = pcn.analyze(model, [x])
    broken = pcn.Taylor(lambda model, batch: model(batch).sum() * float("nan"))
    with pytest.raises(pcn.StatisticsError, match="may hold NaN"):
        pcn.make_plan(model, stats, pcn.Budget(0.5, step=2, worth=broken), batches=[x])


def test_logits_are_found_where_transformers_put_them() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Mlp()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.inner(x)}

    model, x = Wrapped(), torch.randn(32, 12)
    stats = pcn.analyze(model, [x])
    for worth in (pcn.Taylor(), pcn.Divergence(prediction_divergence)):
        assert float(worth(model, stats, ["inner.fc2"], [x])["inner.fc2"][-1]) > 0
    with pytest.raises(pcn.ConfigError, match="holds no logits: give loss="):
        pcn.Taylor()(nn.Sequential(nn.Linear(12, 4), nn.Flatten(0)), stats, [], [x])


@pytest.mark.parametrize("worth", [pcn.Taylor(), pcn.Divergence()])
def test_the_model_is_called_as_the_user_said(worth: pcn.planner.Worth) -> None:
    model, x = built(Mlp, 12)
    budget = pcn.Budget(0.6, step=2, worth=worth)
    asked = pcn.compress_(model, [{"nested": [x]}], budget, forward=lambda model, batch: model(batch["nested"][0]))
    model, x = built(Mlp, 12)
    assert pcn.compress_(model, lambda: [x], budget).transformed == asked.transformed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_sums_do_not_fall_where_they_are_added_side_by_side() -> None:
    for width in range(2, 1025, 73):
        each = torch.rand(width, dtype=torch.float64, device="cuda").pow(40)
        each[width // 2 :] *= 1e-18
        worth = added_up(each / each.sum(), width)
        check_values({"layer": worth}, {"layer": width})


@pytest.mark.parametrize(("numbers", "words"), [([0.0, nan, 1.0], "NaN"), ([0.0, 0.5, 0.4], "no less")])
def test_worth_of_ones_own_is_looked_at(numbers: list[float], words: str) -> None:
    with pytest.raises(PCNError, match=words):
        check_values({"layer": torch.tensor(numbers)}, {"layer": 2})
