"""A fused model computes, trains and is stored exactly as before; what fusion did not foresee costs time only."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pcn
from fusion.networks import IMAGES, NETWORKS, Dense, Residual, transformed
from pcn.fusion import FORMS, choose_forms, fuse_, plain, switch, unfuse_
from pcn.nn import PCConv2d, PCLinear

names = pytest.mark.parametrize("name", NETWORKS)


def pair(name: str) -> tuple[nn.Module, nn.Module, Tensor]:
    """A network, its twin that stays as it is, and a batch."""
    make, shape = NETWORKS[name]
    model = make()
    return model, copy.deepcopy(model), torch.randn(shape, dtype=torch.float64)


def assert_same(fused: nn.Module, twin: nn.Module, batch: Tensor) -> None:
    """Outputs, gradients of everything, and buffers are the same."""
    results = []
    for model in (fused, twin):
        model.zero_grad()
        inputs = batch.clone().requires_grad_()
        output = model(inputs)
        (output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)).sum().backward()
        results.append([output, inputs.grad, *(p.grad for p in model.parameters()), *model.buffers()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


@names
@pytest.mark.parametrize("form", FORMS)
def test_training_and_inference_are_the_same(name: str, form: Any) -> None:
    model, twin, batch = pair(name)
    fuse_(model, batch, forms=form)
    for training in (True, True, False):
        assert_same(model.train(training), twin.train(training), batch)


@names
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_evaluation_is_the_same(name: str, form: Any, without_gradients: Any) -> None:
    """A convolution's constant is taken off its batch norm's running mean, and not added to every position."""
    model, twin, batch = pair(name)
    fuse_(model, batch, forms=form)
    for each in (model, twin):
        for module in each.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                nn.init.ones_(module.running_mean)
                nn.init.constant_(module.running_var, 2.0)
    with without_gradients():
        torch.testing.assert_close(model.eval()(batch), twin.eval()(batch), rtol=1e-8, atol=1e-8)
    for one, other in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(one, other)
    assert_same(model, twin, batch)  # biases have their gradients


@pytest.mark.parametrize("name", ["residual", "patterns"])
def test_what_is_found_in_a_residual_network(name: str) -> None:
    model, _, batch = pair(name)
    found = {chain.norm: chain for chain in fuse_(model, batch).chains}
    assert found["bn"].readers == ("first.conv1", "first.shortcut.conv")  # one projection for both
    assert not found["bn"].emit
    assert found["first.bn1"].readers == ("first.conv2",)
    assert not found["first.bn1"].emit
    assert found["first.bn2"].readers == ("second.conv1",)
    assert found["first.bn2"].added
    assert found["first.bn2"].emit  # the next block adds it
    assert (found["second.bn2"].readers, found["second.bn2"].relu, found["second.bn2"].emit) == ((), True, True)
    assert not found["first.shortcut.bn"].relu


def calls(model: nn.Module, batch: Tensor) -> list[tuple[str, tuple[Any, ...]]]:
    """What torch.compile makes of a model: operators and their arguments."""
    found: list[tuple[str, tuple[Any, ...]]] = []

    def backend(module: torch.fx.GraphModule, example: Any) -> Any:
        found.extend((str(node.target), node.args) for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    torch.compiler.reset()
    torch.compile(model, backend=backend, fullgraph=True)(batch)
    torch.compiler.reset()
    return found


def test_compiled_it_is_fused_too() -> None:
    model, _, batch = pair("residual")
    fuse_(model, batch)
    found = [name for name, _ in calls(model, batch)]
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert sum("norm_project" in name for name in found) == norms
    assert not any("batch_norm" in name for name in found)


def test_behind_a_convolution_the_batchs_mean_takes_its_constant_off() -> None:
    model, twin, batch = pair("residual")
    sources = {chain.norm: chain.source for chain in fuse_(model, batch).chains}
    assert sources == {
        "bn": "conv",  # an ordinary one of few channels
        "first.bn1": "first.conv1",
        "first.bn2": "first.conv2",
        "first.shortcut.bn": "first.shortcut.conv",
        "second.bn1": "second.conv1",
        "second.bn2": "second.conv2",
    }
    found = [(name, arguments) for name, arguments in calls(copy.deepcopy(model), batch) if "conv" in name]
    assert sum("narrow_conv" in name for name, _ in found) == 6  # without a constant, and with their moments
    assert not any("conv2d" in name for name, _ in found)
    biases = [arguments[2] for name, arguments in calls(copy.deepcopy(model).eval(), batch) if "conv2d" in name]
    assert sum(bias is not None for bias in biases) == 5  # through the running mean no gradient would reach them
    with torch.no_grad():
        found = [(name, arguments) for name, arguments in calls(copy.deepcopy(model).eval(), batch) if "conv" in name]
    assert not any(arguments[2] is not None for name, arguments in found if "conv2d" in name)
    assert not any("narrow_conv" in name for name, _ in found)  # whose moments nobody wants
    seen = []
    hook = model.first.conv1.register_forward_hook(lambda module, arguments, output: seen.append(output))
    assert_same(model, twin, batch)
    hook.remove()
    assert isinstance(seen[0], Tensor)


def test_less_is_kept_for_the_way_back() -> None:
    model, twin, batch = pair("residual")
    fuse_(model, batch)

    def kept(network: nn.Module) -> int:
        tensors: dict[int, int] = {}
        own = {parameter.data_ptr() for parameter in network.parameters()}

        def pack(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in own:
                tensors[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = network(batch)
        del output
        return sum(tensors.values())

    assert kept(model) < 0.8 * kept(twin)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_follow_as_in_stock_layers(momentum: float | None) -> None:
    model, twin, batch = pair("residual")
    for network in (model, twin):
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = momentum
    fuse_(model, batch)
    for factor in (1.0, 2.0, 0.5):
        assert_same(model, twin, batch * factor)


def test_without_running_statistics() -> None:
    model, _, batch = pair("residual")
    model.first.bn1 = nn.BatchNorm2d(6, track_running_stats=False).double()
    twin = copy.deepcopy(model)
    fuse_(model, batch)
    for training in (True, False):
        assert_same(model.train(training), twin.train(training), batch)


def test_a_frozen_batch_norm_in_a_model_that_trains() -> None:
    model, twin, batch = pair("residual")
    fuse_(model, batch)
    for network in (model, twin):
        network.train()
        network.first.bn1.eval()
    assert_same(model, twin, batch)


def test_optimizers_and_states_see_the_model_that_they_know(tmp_path: Path) -> None:
    model, twin, batch = pair("residual")
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, weight_decay=1e-2) for m in (model, twin)]
    fuse_(model, batch)
    assert list(model.state_dict()) == list(twin.state_dict())
    for _ in range(3):
        for network, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            network(batch).square().sum().backward()
            optimizer.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
    copied = copy.deepcopy(model)
    assert_same(copied, twin, batch)
    with torch.no_grad():  # the copy's chains are its own
        for parameter in copied.parameters():
            parameter.zero_()
    twin.load_state_dict(model.state_dict())
    assert_same(model, twin, batch)


def test_unfused_it_is_what_it_was() -> None:
    model, twin, batch = pair("residual")
    fuse_(model, batch)
    fuse_(model, batch, forms="folded")  # a second time is no problem
    unfuse_(model)
    assert [type(module) for module in model.modules()] == [type(module) for module in twin.modules()]
    assert [sorted(module.__dict__) for module in model.modules()] == [sorted(m.__dict__) for m in twin.modules()]
    assert_same(model, twin, batch)


def test_plain_and_folded_models_are_not_fused() -> None:
    model = Residual()
    batch = torch.randn(IMAGES)
    pcn.compress_(model, [batch], pcn.PCNConfig(rank=0.5, exclude=("conv",), skip_larger=False))
    twin = copy.deepcopy(model)
    fuse_(model, batch)
    plain_one, plain_other = pcn.to_plain(model), pcn.to_plain(twin)
    pcn.fold_(model)
    pcn.fold_(twin)
    for one, other in ((plain_one, plain_other), (model, twin)):
        assert [type(module) for module in one.modules()] == [type(module) for module in other.modules()]
        torch.testing.assert_close(one.train()(batch), other.train()(batch))
        torch.testing.assert_close(one.state_dict(), other.state_dict())


def test_it_can_be_switched_off() -> None:
    model, twin, batch = pair("residual")
    fuse_(model, batch)
    seen: list[Any] = []
    model.second.conv1.register_forward_pre_hook(lambda module, args: seen.append(type(args[0])))
    with plain():
        assert_same(model, twin, batch)
    model(batch)
    assert seen == [Tensor, Tensor]  # a hook is given tensors


class Curious(Residual):
    """Looks, when asked to, at what the graph did not show."""

    look = False

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x)))
        y = self.second(self.first(x))
        if self.look:
            y = y + x.mean() + torch.cat([x, x], 1).amax() + x[0, 0, 0, 0] * x.shape[1]
        return self.fc(y.mean((2, 3)))


def test_readers_that_nobody_foresaw_get_the_tensor() -> None:
    model = transformed(Curious(), keep=("conv",))
    twin, batch = copy.deepcopy(model), torch.randn(IMAGES, dtype=torch.float64)
    assert not next(chain for chain in fuse_(model, batch).chains if chain.norm == "bn").emit
    model.look = twin.look = True
    assert_same(model, twin, batch)


@pytest.mark.parametrize("how", ["add", "method", "function", "relu", "item", "subtract"])
def test_writing_to_an_activation_that_nobody_foresaw(how: str) -> None:
    class Writing(Residual):
        write = False

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.bn(self.conv(x)))
            if self.write and how == "add":
                x += 1
            elif self.write and how == "method":
                x.mul_(2)
            elif self.write and how == "function":
                torch.neg_(x)
            elif self.write and how == "relu":
                F.relu(x, inplace=True)
            elif self.write and how == "item":
                x[0] = 3.0
            elif self.write and how == "subtract":
                x -= 1
            x = self.first(x)
            return self.fc(self.second(x).mean((2, 3)))

    model = transformed(Writing(), keep=("conv",))
    twin, batch = copy.deepcopy(model), torch.randn(IMAGES, dtype=torch.float64)
    fuse_(model, batch)
    model.write = twin.write = True
    with torch.no_grad():  # what autograd has kept may not be written to
        torch.testing.assert_close(model(batch), twin(batch))


def test_layers_with_other_bases_do_not_share() -> None:
    model, _, batch = pair("residual")
    with torch.no_grad():
        model.first.shortcut.conv.basis.mul_(-1)
    twin = copy.deepcopy(model)
    chain = next(chain for chain in fuse_(model, batch).chains if chain.norm == "bn")
    assert len(chain.readers) == 1
    assert chain.emit
    assert_same(model, twin, batch)


def test_a_state_with_other_bases_is_not_projected_by_the_old_one() -> None:
    model, twin, batch = pair("residual")
    fuse_(model, batch)
    state = twin.state_dict()
    state["first.shortcut.conv.basis"] = -state["first.shortcut.conv.basis"]
    model.load_state_dict(state)
    twin.load_state_dict(state)
    assert_same(model, twin, batch)


def test_what_is_left_alone_and_why() -> None:
    class Own(nn.BatchNorm2d):
        pass

    norms = [Own(4), nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4), nn.BatchNorm2d(4)]
    norms[2].register_forward_hook(lambda *_: None)
    model = nn.Sequential(*norms, norms[3]).double()
    twin, batch = copy.deepcopy(model), torch.randn(3, 4, 5, 5, dtype=torch.float64)
    found = fuse_(model, batch)
    assert not found.chains
    words = {"0": "not nn.BatchNorm1d", "1": "no weight", "2": "hooks", "3": "called 2 times"}
    assert all(words[name] in why for name, why in found.left_alone.items())
    assert found.left_alone.keys() == words.keys()
    assert_same(model, twin, batch)


def test_trained_bases_groups_and_offsets_keep_their_own_code() -> None:
    for options in ({"train_basis": True}, {"groups": 2}, {"offset": True}):
        layer = PCConv2d(4, 4, 3, rank=2, **options)  # type: ignore[arg-type]
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), layer).double()
        twin, batch = copy.deepcopy(model), torch.randn(3, 3, 7, 7, dtype=torch.float64)
        (chain,) = fuse_(model, batch).chains
        assert not chain.readers
        assert_same(model, twin, batch)


@pytest.mark.parametrize("form", FORMS)
def test_layers_that_keep_what_was_dropped(form: Any) -> None:
    """They read the full width, and can be multiplied out."""
    layers = [PCConv2d(4, 5, 3, rank=2, padding=1, offset=True), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *layers, PCLinear(125, 4, 3, offset=True)
    ).double()
    for layer in (model[3], model[7]):
        nn.init.uniform_(layer.mean)
        nn.init.normal_(layer.offset_weight)
    twin, batch = copy.deepcopy(model), torch.randn(3, 3, 7, 7, dtype=torch.float64)
    fusion = fuse_(model, batch, forms=form)
    assert fusion.chains[0].readers == ()
    assert set(fusion.forms.values()) == {"factored" if form == "fused" else form}
    for training in (True, False):
        assert_same(model.train(training), twin.train(training), batch)
    assert set(choose_forms(model, batch)) == {"3", "7"}


@pytest.mark.parametrize("form", FORMS)
def test_layers_with_an_output_basis(form: Any) -> None:
    layers = [PCConv2d(4, 5, 3, rank=2, padding=1, output_rank=3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *layers, PCLinear(125, 4, 3, output_rank=2))
    model = model.double()
    nn.init.uniform_(layers[0].mean)
    twin, batch = copy.deepcopy(model), torch.randn(3, 3, 7, 7, dtype=torch.float64)
    assert fuse_(model, batch, forms=form).chains[0].readers == (("3",) if form == "fused" else ())
    for training in (True, False):
        assert_same(model.train(training), twin.train(training), batch)


def test_wrong_names_and_forms_are_refused() -> None:
    model, _, batch = pair("residual")
    with pytest.raises(pcn.ConfigError, match=r"'first.conv9' is not .* did you mean 'first.conv"):
        fuse_(model, batch, forms={"first.conv9": "folded"})
    with pytest.raises(pcn.ConfigError, match=r"'melted' .* choose one of fused, factored, folded"):
        fuse_(model, batch, forms={"first.conv1": "melted"})  # type: ignore[dict-item]
    for forms in (None, ["folded"]):
        with pytest.raises(pcn.ConfigError, match="give one of fused, factored, folded, or a mapping"):
            fuse_(model, batch, forms=forms)  # type: ignore[arg-type]


def test_single_rows_are_refused_as_by_stock_layers() -> None:
    model = transformed(Dense())
    fuse_(model, torch.randn(3, 12, dtype=torch.float64))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(torch.randn(1, 12, dtype=torch.float64))
    model.eval()
    assert model(torch.randn(0, 12, dtype=torch.float64)).shape == (0, 12)


# torch's own, of any block that is compiled by itself
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_network_compiled_whole_and_in_parts() -> None:
    from pcn.training.compiling import running

    model, twin, batch = pair("residual")
    fuse_(model, batch)
    torch.compiler.reset()
    assert_same(torch.compile(model, backend="aot_eager", fullgraph=True), twin, batch)  # type: ignore[arg-type]
    options: dict[str, Any] = {"backend": "aot_eager", "fullgraph": True, "dynamic": False}
    parts = {part: torch.compile(part.forward, **options) for part in (model.first, model.second)}
    with running(parts):
        for _ in range(2):
            assert_same(model, twin, batch)
    torch.compiler.reset()


def test_what_is_exported_are_stock_operators() -> None:
    model, twin, batch = pair("residual")
    fuse_(model, batch)
    program = torch.export.export(model.eval(), (batch,))
    assert not any("pcn" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(batch), twin.eval()(batch))


def test_autocast() -> None:
    model, twin, batch = pair("residual")
    model, twin, batch = model.float(), twin.float(), batch.float()
    expected_chains = fuse_(model, batch).chains
    with torch.autocast("cpu", torch.bfloat16):
        assert fuse_(model, batch.bfloat16()).chains == expected_chains
        found, expected = model(batch), twin(batch)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1)
    found.sum().backward()


def test_flops_are_counted_as_before() -> None:
    from pcn.costs.count import flops_per_sample

    model, twin, batch = pair("norm before")
    fuse_(model, batch)
    assert flops_per_sample(model, batch) == pytest.approx(flops_per_sample(twin, batch), rel=1e-2)


def test_without_kernels_stock_layers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model, twin, batch = pair("residual")
    fuse_(model, batch)
    monkeypatch.setitem(switch._state, "everywhere", False)
    monkeypatch.setattr("pcn.fusion.norms.norm_project", None)
    monkeypatch.setattr("pcn.fusion.norms.batch_moments", None)
    for training in (True, False):
        assert_same(model.train(training), twin.train(training), batch)


def test_weights_are_loaded_into_a_fused_model_without_values() -> None:
    def built() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), PCConv2d(16, 8, 3, rank=4))

    x, given = torch.randn(2, 3, 9, 9), built()
    for module in given.modules():
        if isinstance(module, PCConv2d):
            nn.init.normal_(module.basis)
    model = built()
    fuse_(model, x)
    model.to("meta").load_state_dict(given.state_dict(), assign=True)
    with switch.everywhere():
        torch.testing.assert_close(model.train()(x), given.train()(x))
