"""The moments of the loss's gradients by what layers read: from the same pass, and as exact as those of the inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import pcn
from pcn import ConfigError, PCNConfig, Statistics, StatisticsError
from pcn.running.gradients import predicted_loss
from pcn.statistics import forms
from small import ConvNet, Mlp, images, vectors

Labelled = tuple[Tensor, Tensor]


def labelled(inputs: Tensor, *sizes: int) -> list[Labelled]:
    labels = torch.randint(5, (len(inputs),), generator=torch.Generator().manual_seed(1))
    return list(zip(inputs.split(list(sizes)), labels.split(list(sizes)), strict=True))


def mean_loss(model: nn.Module, batch: Labelled) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def of_each_sample(model: nn.Module, layer: str, batches: list[Labelled]) -> Tensor:
    """The gradients of every sample's own loss by what a layer reads, (samples and positions, inputs)."""
    module, rows = model.get_submodule(layer), []
    channels = -3 if isinstance(module, nn.Conv2d) else -1
    for inputs, labels in batches:
        for sample, label in zip(inputs, labels, strict=True):
            seen: list[Tensor] = []
            handle = module.register_forward_pre_hook(lambda _, args, to=seen: to.append(args[0].requires_grad_()))
            loss = mean_loss(model, (sample[None], label[None]))
            handle.remove()
            (gradient,) = torch.autograd.grad(loss, seen)
            rows.append(gradient.movedim(channels, -1).flatten(0, -2))
    return torch.cat(rows)


class Tokens(nn.Module):
    """Reads sequences, position by position."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(12, 9), nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x)).mean(1))


@pytest.mark.parametrize("kind", ["convolutional", "dense", "sequences"])
def test_they_are_those_of_every_sample_and_position_alone(kind: str) -> None:
    torch.manual_seed(0)
    model, inputs = {
        "convolutional": (ConvNet, images(13)),
        "dense": (Mlp, vectors(13)),
        "sequences": (Tokens, vectors(13 * 4).view(13, 4, 12)),
    }[kind]
    model, batches = model().double().eval(), labelled(inputs.double(), 8, 5)
    stats = pcn.analyze(model, batches, gradients=mean_loss)
    for name, shape in stats.shapes.items():
        parts = of_each_sample(model, name, batches).chunk(shape.groups, 1)
        assert stats.gradients[name].count == stats.samples(name) == len(parts[0])
        expected = torch.stack([part.T @ part / len(part) for part in parts])
        torch.testing.assert_close(stats.gradient_moments(name), expected, rtol=1e-9, atol=1e-12 * expected.max())


class Heads(nn.Module):
    """``left`` and ``right`` read one activation; only the left one has a say."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = nn.Linear(12, 8), nn.Linear(8, 5), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.stem(x))
        self.right(hidden)
        return self.left(hidden)


def test_layers_that_share_an_input_each_have_their_own() -> None:
    stats = pcn.analyze(Heads(), [vectors(40)], gradients=True)
    assert stats.layers["left"] == stats.layers["right"]
    assert float(stats.gradient_moments("left").norm()) > 0
    assert float(stats.gradient_moments("right").norm()) == 0


def test_the_inputs_are_measured_as_without_and_nothing_is_left_behind() -> None:
    model, batches = ConvNet(), [images(8), images(5)]
    model.conv1.weight.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    plain, taken = pcn.analyze(model, iter(batches)), pcn.analyze(model, iter(batches), gradients=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert taken.layers == plain.layers
    for name in plain.layers:
        assert torch.equal(taken.covariance(name), plain.covariance(name))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not any(moments.total.requires_grad for moments in taken.gradients.values())


class Checkpointed(Mlp):
    """Calls its layers again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


def test_a_model_with_checkpoints_is_measured_once() -> None:
    plain, again = Mlp().double(), Checkpointed().double()
    again.load_state_dict(plain.state_dict())
    batch = vectors(30).double()
    one, other = (pcn.analyze(model, [batch], gradients=True) for model in (plain, again))
    assert one.samples("fc2") == other.samples("fc2") == 30
    torch.testing.assert_close(one.gradient_moments("fc2"), other.gradient_moments("fc2"))


def test_two_halves_merged_equal_the_whole_and_a_half_without_leaves_none() -> None:
    model, (first, second) = ConvNet().eval(), labelled(images(20), 12, 8)
    whole = pcn.analyze(model, [first, second], gradients=mean_loss)
    halves = [pcn.analyze(model, [half], gradients=mean_loss) for half in (first, second)]
    merged = halves[0].merge(halves[1])
    for name in whole.layers:
        near = {"rtol": 1e-5, "atol": 1e-7 * float(whole.gradient_moments(name).max())}
        torch.testing.assert_close(merged.gradient_moments(name), whole.gradient_moments(name), **near)
    assert halves[0].merge(pcn.analyze(model, [second])).gradients == {}
    only = pcn.analyze(model, [second], layers="fc1").merge(pcn.analyze(model, [first], layers="fc2", gradients=True))
    assert list(only.gradients) == ["fc2"]


@pytest.mark.parametrize("form", ["Covariance", "Samples"])
def test_a_file_holds_them_too(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = Mlp(40).eval(), vectors(30)
    usual = pcn.analyze(model, [batch], gradients=True)
    if form == "Samples":
        monkeypatch.setattr(forms, "COVARIANCE_WIDTH", 32)
    stats = pcn.analyze(model, [batch], gradients=True)
    assert type(stats.gradients["fc2"]).__name__ == form
    stats.save(tmp_path / "stats")
    read = Statistics.load(tmp_path / "stats")
    assert list(read.gradients) == list(stats.gradients)
    for name in stats.layers:
        assert torch.equal(read.gradient_moments(name), stats.gradient_moments(name))
        torch.testing.assert_close(stats.gradient_moments(name), usual.gradient_moments(name), rtol=1e-5, atol=1e-9)


def test_without_a_loss_of_ones_own_labels_are_those_that_the_model_predicts() -> None:
    model, batch = Mlp(), vectors(50)
    found, expected = (pcn.analyze(model, [batch], gradients=which) for which in (True, predicted_loss))
    for name in expected.layers:
        assert torch.equal(found.gradient_moments(name), expected.gradient_moments(name))


def test_how_samples_are_cut_into_batches_does_not_matter() -> None:
    model, inputs = Mlp(), vectors(60)
    whole, *others = (pcn.analyze(model, inputs.split(size), gradients=True) for size in (60, 16, 1))
    for stats in others:
        for name in whole.layers:
            torch.testing.assert_close(stats.gradient_moments(name), whole.gradient_moments(name), rtol=1e-4, atol=0)


def test_what_is_written_in_place_later_changes_no_gradient() -> None:
    class Writes(nn.Module):
        def __init__(self, inplace: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
            self.relu = nn.ReLU(inplace)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            y = self.second(h)
            return self.last(y + self.relu(h))

    batch = torch.randn(20, 6)
    found, expected = (
        pcn.analyze(Writes(inplace).requires_grad_(False), [batch], gradients=True) for inplace in (True, False)
    )
    assert expected.gradient_moments("second").norm() > 0
    torch.testing.assert_close(found.gradient_moments("second"), expected.gradient_moments("second"))


def test_tokens_that_are_folded_into_the_batch_are_no_samples() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.each, self.all = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.all(self.each(x.flatten(0, 1)).relu().unflatten(0, x.shape[:2]).mean(1))

    short, long = (torch.ones(8, length, 4) for length in (2, 60))
    found, expected = (pcn.analyze(Tokens(), [batch], gradients=True) for batch in (long, short))
    torch.testing.assert_close(found.gradient_moments("all"), expected.gradient_moments("all"))


@pytest.mark.parametrize("outputs", [nn.Linear(6, 1), nn.Sequential(nn.Linear(6, 24), nn.Unflatten(1, (2, 3, 4)))])
def test_what_is_no_classifier_wants_a_loss_of_its_own(outputs: nn.Module) -> None:
    with pytest.raises(ConfigError, match="two classes or more"):
        pcn.analyze(nn.Sequential(nn.Linear(6, 6), outputs), [torch.randn(20, 6)], gradients=True)


def test_inference_mode_is_left_first() -> None:
    with torch.inference_mode(), pytest.raises(ConfigError, match="leave it"):
        pcn.analyze(Mlp(), [vectors(30)], gradients=True)
    with torch.inference_mode():
        batch = vectors(30)
    assert pcn.analyze(Mlp(), [batch], gradients=True).gradients


def test_statistics_without_them_say_how_to_get_them() -> None:
    model = Mlp()
    stats = pcn.analyze(model, [vectors(30)])
    for ask in (
        stats.gradient_moments,
        lambda _: pcn.make_plan(model, stats, PCNConfig(rank=4, basis="balanced", skip_larger=False)),
    ):
        with pytest.raises(StatisticsError, match=r"'fc\d' hold no gradients: analyze with gradients=True"):
            ask("fc1")


def test_inputs_too_wide_for_any_basis_but_pca_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "WIDEST_BASIS", 12)
    stats = pcn.analyze(Mlp(), [vectors(30)], gradients=True)
    assert list(stats.gradients) == ["fc1"]
    with pytest.raises(StatisticsError, match="goes up to 12 inputs"):
        stats.gradient_moments("fc2")


@pytest.mark.parametrize(
    ("gradients", "said"),
    [
        ("cross entropy", "give True, or a loss"),
        (lambda model, batch: model(batch), r"of shape \(30, 5\), cannot be differentiated"),
        (lambda model, batch: model(batch).detach().sum(), "cannot be differentiated"),
        (lambda model, batch: model(batch).sum().item(), "of type float, cannot be differentiated"),
    ],
)
def test_a_loss_that_cannot_be_one_is_refused(gradients: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pcn.analyze(Mlp(), [vectors(30)], gradients=gradients)


def test_a_model_that_is_no_classifier_needs_a_loss() -> None:
    with pytest.raises(ConfigError, match="holds no logits: give gradients="):
        pcn.analyze(nn.Sequential(nn.Linear(12, 4), nn.Flatten(0)), [vectors(30)], gradients=True)


def test_gradients_that_are_not_finite_name_the_layer() -> None:
    with pytest.raises(StatisticsError, match="the gradients of the loss by the inputs of 'fc1'"):
        pcn.analyze(Mlp(), [vectors(30)], gradients=lambda model, batch: model(batch).sum() * float("inf"))


class Gated(nn.Module):
    """A gate that no gradient passes, and which is read once more, with one, where ``also_trained``."""

    def __init__(self, *, also_trained: bool) -> None:
        super().__init__()
        self.inner, self.gate, self.head = nn.Linear(12, 9), nn.Linear(9, 9), nn.Linear(9, 5)
        self.also_trained = also_trained

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x))
        with torch.no_grad():
            gate = torch.sigmoid(self.gate(h))
        return self.head(self.gate(h * gate) if self.also_trained else h * gate)


def test_calls_without_gradients_count_as_zeros_beside_others() -> None:
    torch.manual_seed(0)
    model, x = Gated(also_trained=True).double(), torch.randn(32, 12).double()
    stats = pcn.analyze(model, labelled(x, 32), gradients=mean_loss)
    plan = pcn.make_plan(model, stats, PCNConfig(rank=4, basis="balanced", skip_larger=False))
    plan.apply_(model, stats)
    assert model.gate.rank == 4


@pytest.mark.parametrize("how", ["balanced", "taylor"])
def test_layers_that_never_have_a_gradient_are_named(how: str) -> None:
    model, batches = Gated(also_trained=False), labelled(torch.randn(32, 12), 32)

    def look() -> object:
        if how == "balanced":
            return pcn.analyze(model, batches, gradients=mean_loss)
        return pcn.Taylor(mean_loss)(model, pcn.analyze(model, batches), ["inner", "gate"], batches)

    with pytest.raises(ConfigError, match=r"'gate' runs without gradients, .* exclude it from the plan or go by the"):
        look()


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
def test_checkpoints_that_cannot_be_differentiated_so_are_named() -> None:
    inner, head = nn.Linear(12, 9), nn.Linear(9, 5)
    model = nn.ModuleDict({"inner": inner, "head": head})

    def loss(model: nn.Module, batch: Labelled) -> Tensor:
        hidden = checkpoint(model["inner"], batch[0].requires_grad_(), use_reentrant=True)
        return F.cross_entropy(model["head"](hidden), batch[1])

    with pytest.raises(ConfigError, match=r"torch.utils.checkpoint needs use_reentrant=False"):
        pcn.analyze(
            model,
            labelled(torch.randn(32, 12), 32),
            gradients=loss,
            forward=lambda model, batch: model["head"](model["inner"](batch)),
        )
