"""One pass measures what each layer really reads, whatever the model, its input and the way it is called."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import pcn
from pcn.errors import ConfigError, StatisticsError
from pcn.statistics import analyze, forms


def record(model, name, batches, call=lambda model, batch: model(batch)):
    """Everything that a layer reads, as (samples, channels): written down by a plain hook, flattened here."""
    module = model.get_submodule(name)
    spatial = module.weight.dim() - 2 if hasattr(module, "kernel_size") else 0
    seen = []
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().clone()))
    was_training = model.training
    with torch.no_grad():
        for batch in batches:
            call(model.eval(), batch)
    model.train(was_training)
    handle.remove()
    return torch.cat([x.movedim(-spatial - 1, -1).reshape(-1, x.shape[-spatial - 1]) for x in seen]).double()


def check(statistics, name, rows, groups=1):
    assert statistics.samples(name) == len(rows)
    torch.testing.assert_close(statistics.mean(name), rows.mean(0), rtol=1e-5, atol=1e-6)
    for covariance, part in zip(statistics.covariance(name), rows.chunk(groups, dim=1), strict=True):
        np.testing.assert_allclose(covariance, np.cov(part.numpy(), rowvar=False), rtol=1e-4, atol=1e-6)


class Net(nn.Module):
    def __init__(self, spatial=2, groups=1):
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[spatial - 1]
        norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[spatial - 1]
        self.first = conv(4, 6, 3, padding=1, groups=groups)
        self.norm = norm(6)
        self.second = conv(6, 8, 3, stride=2, groups=groups)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        y = F.relu(self.norm(self.first(x)))
        return self.head(self.second(y).flatten(2).mean(2))


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_read_depth_vectors_at_all_positions(spatial, groups, channels_last):
    model = Net(spatial, groups)
    batches = [torch.randn(n, 4, *(6,) * spatial) for n in (5, 3)]
    if channels_last and spatial > 1:
        layout = torch.channels_last if spatial == 2 else torch.channels_last_3d
        model, batches = model.to(memory_format=layout), [b.to(memory_format=layout) for b in batches]
    statistics = analyze(model, batches)
    assert statistics.layers == {"first": "first", "second": "second", "head": "head"}
    assert statistics.left_alone == {"norm": f"BatchNorm{spatial}d is not a Linear, Conv1d, Conv2d or Conv3d"}
    for name in ("first", "second"):
        check(statistics, name, record(model, name, batches), groups)
    check(statistics, "head", record(model, "head", batches))
    basis = statistics.basis("second", 2)
    assert basis.shape == (6, 2)
    for part in basis.chunk(groups):
        torch.testing.assert_close(part.T @ part, torch.eye(2, dtype=torch.float64))


def test_linear_layers_read_all_tokens():
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
    batches = [torch.randn(3, 5, 6), torch.randn(2, 7, 6), torch.randn(4, 6), torch.randn(6)]
    statistics = analyze(model, batches)
    assert statistics.samples("2") == 15 + 14 + 4 + 1
    check(statistics, "2", record(model, "2", batches))


def test_unbatched_images():
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 2, 1))
    batches = [torch.randn(3, 8, 8) for _ in range(4)]
    check(analyze(model, batches), "2", record(model, "2", batches))


def test_the_conv1d_of_transformers():
    from transformers.pytorch_utils import Conv1D

    model = nn.Sequential(nn.Linear(5, 6), Conv1D(7, 6), nn.Linear(7, 2))
    batches = [torch.randn(4, 3, 5)] * 2
    statistics = analyze(model, batches)
    assert set(statistics.layers) == {"0", "1", "2"}
    check(statistics, "1", record(model, "1", batches))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 5), nn.Linear(3, 5)
        self.out = nn.Linear(5, 2)

    def forward(self, left, right):
        return self.out(torch.tanh(self.one(left) + self.two(right)))


LEFT, RIGHT, TARGET = torch.randn(9, 4), torch.randn(9, 3), torch.zeros(9)


@pytest.mark.parametrize(
    "batch",
    [
        {"left": LEFT, "right": RIGHT},
        ({"left": LEFT, "right": RIGHT}, TARGET),
        [(LEFT, RIGHT), TARGET],
        ((LEFT, RIGHT), TARGET, TARGET),
    ],
    ids=["mapping", "mapping and target", "list of tuple and target", "tuple and two targets"],
)
def test_batches_of_many_kinds(batch):
    model = Pair()
    call = lambda model, _: model(LEFT, RIGHT)  # noqa: E731
    statistics = analyze(model, [batch, batch])
    check(statistics, "out", record(model, "out", [None, None], call))
    assert torch.equal(statistics.example.call(model), model(LEFT, RIGHT))


def test_a_forward_function_of_ones_own():
    model = Pair()
    forward = lambda model, batch: model(batch.left, right=batch.right)  # noqa: E731
    batch = type("Batch", (), {"left": LEFT, "right": RIGHT})()
    statistics = analyze(model, iter([batch]), forward=forward)
    check(statistics, "out", record(model, "out", [batch], forward))
    assert torch.equal(statistics.example.call(model), model(LEFT, RIGHT))


def test_a_data_loader():
    images, labels = torch.randn(10, 4, 6, 6), torch.zeros(10)
    model = Net()
    statistics = analyze(model, DataLoader(TensorDataset(images, labels), batch_size=4))
    check(statistics, "second", record(model, "second", [images]))


def test_inputs_by_keyword():
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(input=x)

    assert analyze(Keyword(), [torch.randn(5, 3)]).samples("layer") == 5


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_models(in_place):
    model = Net()
    batches = [torch.randn(3, 4, 6, 6)] * 2
    compiled = torch.compile(model, backend="eager")
    if in_place:
        model.compile(backend="eager")
        compiled = model
    compiled(batches[0])
    statistics = analyze(compiled, batches)
    assert set(statistics.layers) == {"first", "second", "head"}
    assert statistics.samples("first") == 2 * 3 * 36
    compiled(batches[0])


def test_a_compiled_part():
    model = nn.Sequential(nn.Linear(4, 5), torch.compile(nn.Sequential(nn.Linear(5, 6), nn.ReLU()), backend="eager"))
    batch = torch.randn(7, 4)
    with torch.no_grad():
        model(batch)
    assert analyze(model, [batch]).samples("1._orig_mod.0") == 7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    batches = [torch.randn(50, 6) for _ in range(3)]
    with torch.autocast("cpu", dtype):
        statistics = analyze(model, batches)
        rows = record(model, "2", batches)
    check(statistics, "2", rows)
    assert statistics.covariance("2").dtype == torch.float64


def test_half_precision_models():
    model = Net().to(torch.bfloat16)
    batches = [torch.randn(4, 4, 6, 6, dtype=torch.bfloat16)] * 2
    check(analyze(model, batches), "second", record(model, "second", batches))


def test_double_precision_models():
    model = Net().double()
    batches = [torch.randn(4, 4, 6, 6, dtype=torch.float64)] * 2
    rows = record(model, "second", batches)
    torch.testing.assert_close(analyze(model, batches).covariance("second")[0], torch.cov(rows.T), rtol=1e-12, atol=0)


def test_spatial_pooling_before_pca():
    model = Net()
    batches = [torch.randn(4, 4, 7, 7)]
    statistics = analyze(model, batches, pool=2)
    rows = F.avg_pool2d(batches[0], 2).movedim(1, -1).reshape(-1, 4).double()
    check(statistics, "first", rows)
    assert statistics.samples("head") == 4


def test_a_fraction_of_the_samples():
    model = nn.Sequential(nn.Linear(6, 6), nn.Identity(), nn.Linear(6, 6))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(6))
        model[0].bias.zero_()
    batches = [torch.randn(40, 6), torch.randn(20, 6)]
    statistics = analyze(model, batches, fraction=0.25)
    assert statistics.samples("0") == statistics.samples("2") == 15
    means = statistics.mean("0"), statistics.mean("2")
    assert not torch.allclose(*means)  # different samples for each layer
    again = analyze(model, batches, fraction=0.25)
    assert torch.equal(again.mean("2"), means[1])
    assert not torch.equal(analyze(model, batches, fraction=0.25, seed=1).mean("2"), means[1])


def test_train_mode_if_asked_for():
    model = Net().train()
    batch = torch.randn(8, 4, 6, 6) * 3 + 2
    evaluated, trained = analyze(model, [batch]), analyze(model, [batch], mode="train")
    assert not torch.allclose(evaluated.mean("second"), trained.mean("second"))


class Lagging(nn.Module):
    """A network whose running statistics are whatever somebody has written there."""

    def __init__(self, factor):
        super().__init__()
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(8)
        self.layers = nn.Sequential(nn.Conv2d(4, 8, 3), norm, nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(8, 6, 3))
        self.head = nn.Linear(6, 3)
        norm.running_mean += factor - 1
        norm.running_var *= factor
        norm.num_batches_tracked += 1

    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))


def test_with_the_batches_own_statistics_running_ones_do_not_count():
    batches = [torch.randn(16, 4, 8, 8) for _ in range(2)]
    found = []
    for factor in (1.0, 50.0):
        model = Lagging(factor).train()
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        stats = analyze(model, batches, mode="batch")
        plan = pcn.make_plan(model, stats, pcn.Budget(params=0.6, step=1, worth=pcn.Taylor()), batches=batches)
        found.append((stats.covariance("layers.4"), plan.to_json()))
        assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    without_dropout = Lagging(50.0).train()
    without_dropout.layers[3].eval()
    trained = analyze(without_dropout, batches, mode="train")
    torch.testing.assert_close(trained.covariance("layers.4"), found[0][0])


def test_a_batch_norm_that_is_frozen_in_training_is_looked_at_so():
    batch = torch.randn(16, 4, 8, 8)
    model = Lagging(3.0).train()
    model.layers[1].eval()
    frozen = analyze(model, [batch], mode="batch").covariance("layers.4")
    assert torch.equal(frozen, analyze(model, [batch]).covariance("layers.4"))
    assert not torch.allclose(frozen, analyze(model.eval(), [batch], mode="batch").covariance("layers.4"))
    freezing = FrozenByItself(3.0)
    for stands in (freezing.train(), freezing.eval()):
        assert torch.equal(frozen, analyze(stands, [batch], mode="batch").covariance("layers.4"))


class FrozenByItself(Lagging):
    def train(self, mode=True):
        super().train(mode)
        self.layers[1].eval()
        return self


class OwnNorm(nn.BatchNorm2d):
    """Reads its running statistics itself, and is called by keyword."""

    def forward(self, input):
        if self.training:
            return super().forward(input)
        return (input - self.running_mean[:, None, None]) / (self.running_var[:, None, None] + self.eps).sqrt()


class KeywordNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.conv = OwnNorm(4), nn.Conv2d(4, 6, 3)
        self.norm.num_batches_tracked += 1

    def forward(self, x):
        return self.conv(self.norm(input=x))


def test_norms_of_ones_own_and_called_by_keyword_are_taken():
    batch = torch.randn(16, 4, 8, 8)
    model = KeywordNet()
    assert analyze(model, [batch]).samples("conv") == analyze(model, [batch], mode="batch").samples("conv")


def test_one_sample_has_no_statistics_of_its_own():
    model = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.Linear(64, 64))
    batches = [torch.randn(32, 4), torch.randn(1, 4)]
    with pytest.raises(StatisticsError, match=r"batch 1 has one sample.*drop_last"):
        pcn.compress_(model, batches, params=0.9)
    assert pcn.compress_(model, batches, params=0.9, mode="eval").transformed


def test_running_statistics_that_lag_are_warned_of():
    batch = torch.randn(64, 4, 8, 8)
    model = Lagging(50.0)
    with pytest.warns(UserWarning, match=r"layers\.1 .*factor"):
        analyze(model, [batch])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        analyze(model, [batch])  # once is enough
    model = Lagging(50.0)
    pcn.recalibrate_(model, [batch])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        analyze(model, [batch])
        analyze(Lagging(50.0), [batch], mode="batch")
    with pytest.raises(ConfigError, match="eval, batch, train"):
        analyze(model, [batch], mode="evaluation")


@pytest.mark.parametrize(
    ("layers", "exclude", "kept"),
    [
        ("second", (), ["second"]),
        (["first", "head"], (), ["first", "head"]),
        ("*", ["first"], ["second", "head"]),
        (None, "*i*t", ["second", "head"]),
    ],
)
def test_layers_by_name_and_glob(layers, exclude, kept):
    statistics = analyze(Net(), [torch.randn(3, 4, 6, 6)], layers=layers, exclude=exclude)
    assert list(statistics.layers) == kept
    reasons = {name: statistics.left_alone[name] for name in {"first", "second", "head"} - set(kept)}
    assert all("excluded by" in reason or "not among" in reason for reason in reasons.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": "secnd"}, "no layer is called 'secnd'; did you mean 'second'"),
        ({"exclude": ["bogus"]}, "no layer is called 'bogus'"),
        ({"layers": ["norm"]}, "'norm' cannot be transformed: BatchNorm2d"),
        ({"pool": 0}, "pool=0: give a whole number of at least 1"),
        ({"max_rank": 2.5}, "max_rank=2.5"),
        ({"passes": True}, "passes=True"),
        ({"fraction": 0.0}, r"fraction=0.0: the fraction must lie in \(0, 1\]"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        analyze(Net(), [torch.randn(3, 4, 6, 6)], **options)


@pytest.mark.parametrize("batches", [torch.randn(3, 4, 6, 6), {"x": torch.randn(3, 4, 6, 6)}])
def test_one_batch_is_not_a_list_of_batches(batches):
    with pytest.raises(ConfigError, match=r"give an iterable of batches, such as \[batch\]"):
        analyze(Net(), batches)


def test_a_batch_of_nobody_knows_what():
    with pytest.raises(ConfigError, match="a batch holds str"):
        analyze(Net(), ["images"])


def test_no_batch_at_all():
    with pytest.raises(StatisticsError, match="there was no batch"):
        analyze(Net(), [])


def test_no_layer_at_all():
    with pytest.raises(StatisticsError, match="no layer to look at"):
        analyze(nn.Sequential(nn.ReLU()), [torch.randn(3)])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", [0, 2])
def test_numbers_that_are_not_finite_name_the_layer(bad, which):
    batches = [torch.randn(3, 4, 6, 6) for _ in range(3)]
    batches[which][1, 2, 3, 4] = bad
    with pytest.raises(StatisticsError, match=r"inputs of 'first' \(and those of 2 more layers\) hold NaN, infinite"):
        analyze(Net(), batches)


def test_one_sample_names_the_layer():
    statistics = analyze(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), [torch.randn(1, 4)])
    assert statistics.mean("1").shape == (3,)
    for ask in (statistics.covariance, statistics.spectrum, lambda name: statistics.basis(name, 1)):
        with pytest.raises(StatisticsError, match="'1': 1 sample was seen, but a covariance needs at least 2"):
            ask("1")


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.used(x)


def test_layers_that_are_never_called():
    statistics = analyze(Branching(), [torch.randn(3, 4)])
    assert statistics.left_alone == {"unused": "never called during the pass"}
    with pytest.raises(StatisticsError, match="'unused' was never called"):
        analyze(Branching(), [torch.randn(3, 4)], layers=["used", "unused"])
    with pytest.raises(StatisticsError, match="'unused' was never called"):
        analyze(Branching(), [torch.randn(3, 4)], exclude="used")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_models_that_cannot_be_looked_at_are_told_what_to_do():
    with pytest.raises(StatisticsError, match="on the meta device, where nothing is computed: give it weights first"):
        analyze(nn.Sequential(nn.Linear(4, 4, device="meta")), [torch.randn(3, 4)])
    lazy = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(2))
    with pytest.raises(StatisticsError, match=r"'1\.weight' is lazy, and looking .* does not change it: run it once"):
        analyze(lazy, [torch.randn(3, 4)])
    assert isinstance(lazy[1], nn.LazyLinear)
    with pytest.raises(StatisticsError, match=r"transform the model before torch.jit.script or torch.jit.trace"):
        analyze(torch.jit.script(nn.Sequential(nn.Linear(4, 4))), [torch.randn(3, 4)])


def test_empty_inputs_count_nothing():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert analyze(model, [torch.randn(0, 4), torch.randn(3, 4)]).samples("1") == 3
    with pytest.raises(StatisticsError, match="the batches hold no samples"):
        analyze(model, [torch.randn(0, 4)])


def test_an_error_of_the_model_says_how_it_was_called():
    message = r"batch 1, called as model\(float32\[3, 5\]\): RuntimeError: .*cannot be multiplied.*forward="
    with pytest.raises(StatisticsError, match=message) as raised:
        analyze(nn.Sequential(nn.Linear(4, 4)), [torch.randn(3, 4), torch.randn(3, 5)])
    assert isinstance(raised.value.__cause__, RuntimeError)


class TestSketches:
    @pytest.fixture(autouse=True)
    def _wide_is_thirty(self, monkeypatch):
        monkeypatch.setattr(forms, "COVARIANCE_WIDTH", 20)
        monkeypatch.setattr(forms, "LARGEST_COVARIANCE", 30)

    @pytest.fixture
    def model(self):
        return nn.Sequential(nn.Linear(10, 60), nn.Tanh(), nn.Linear(60, 5), nn.Linear(5, 2))

    def test_batches_that_come_again_refine(self, model):
        batches = [torch.randn(50, 10) for _ in range(4)]
        expected = torch.linalg.eigvalsh(torch.cov(record(model, "2", batches).T)).flip(0)[:4]
        one, two = (analyze(model, batches, max_rank=4, passes=passes) for passes in (1, None))
        errors = [float((s.spectrum("2").leading(4)[0][0] / expected - 1).abs().max()) for s in (one, two)]
        assert errors[1] < errors[0]
        assert errors[1] < 1e-3
        assert one.samples("2") == two.samples("2") == 200
        assert two.samples("0") == 200

    def test_batches_that_come_once_do_not(self, model):
        batches = [torch.randn(50, 10) for _ in range(4)]
        once = analyze(model, iter(batches), max_rank=4)
        assert torch.equal(once.basis("2", 3), analyze(model, batches, max_rank=4, passes=1).basis("2", 3))
        with pytest.raises(ConfigError, match="can be iterated only once"):
            analyze(model, iter(batches), max_rank=4, passes=2)


def test_the_public_name():
    assert pcn.analyze is analyze


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("as_sparse", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_sparse_inputs_are_measured_as_the_numbers_that_they_hold(as_sparse):
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4)).double()
    x = torch.randn(200, 16).double().relu()
    found, expected = pcn.analyze(model, [as_sparse(x)]), pcn.analyze(model, [x])
    for layer in ("0", "2"):
        torch.testing.assert_close(found.mean(layer), expected.mean(layer))
        torch.testing.assert_close(found.basis(layer, 5), expected.basis(layer, 5))
