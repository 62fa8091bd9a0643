"""What is saved comes back; what is damaged, hostile or of another model is refused and changes nothing."""

from __future__ import annotations

import copy
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import pcn
from pcn import FileError, LayerRule, PCNConfig, PCNError, PlanError
from pcn.saving.model_folder import PLAN_FILE, WEIGHTS_FILE, load_plan
from pcn.saving.weight_files import load_weights_
from pcn.saving.weights import tensors_to_save
from pcn.whole_files import put_in_place
from small import ConvNet, Mlp, all_tensors, conv_net, images, record, vectors

SOURCES = Path(pcn.__file__).parent
CONFIG = PCNConfig(
    rank=0.5,
    layers={"conv1": LayerRule(keep_outputs=5), "conv2": LayerRule(rank=3, keep_outputs=8)},
    skip_larger=False,
)


def small_net(config: PCNConfig = CONFIG) -> ConvNet:
    model = conv_net()
    pcn.compress_(model, [images()], config)
    return model


def small_mlp() -> Mlp:
    model = Mlp()
    pcn.compress_(model, [vectors()], PCNConfig(rank=3))
    return model


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    pcn.save(small_mlp(), tmp_path / "saved")
    return tmp_path / "saved"


def refused(folder: Path, message: str, model: nn.Module | None = None, error: type[PCNError] = FileError) -> None:
    """Loading raises our error, says what to do, and leaves the model as it was."""
    model = Mlp() if model is None else model
    before, random = record(model), torch.get_rng_state()
    with pytest.raises(error, match=message):
        pcn.load(model, folder)
    assert record(model) == before
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        PCNConfig(rank=0.5, train_basis=True, skip_larger=False),
        PCNConfig(rank=0.5, keep_dropped=True, skip_larger=False),
    ],
)
def test_what_is_saved_comes_back(config: PCNConfig, tmp_path: Path) -> None:
    model, x = small_net(config), images()
    pcn.save(model, tmp_path / "a" / "small")
    fresh = conv_net()
    assert pcn.load(fresh, tmp_path / "a" / "small") is fresh
    assert torch.equal(fresh(x), model(x))
    assert pcn.get_plan(fresh) == pcn.get_plan(model)
    assert [name for name, _ in fresh.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert sorted(os.listdir(tmp_path / "a")) == ["small"]
    assert sorted(os.listdir(tmp_path / "a" / "small")) == [WEIGHTS_FILE, PLAN_FILE]
    pcn.fold_(fresh)


def test_loading_draws_no_random_numbers(saved: Path) -> None:
    model = Mlp()
    random = torch.get_rng_state()
    pcn.load(model, saved)
    assert torch.equal(torch.get_rng_state(), random)


def test_parameters_that_stay_are_the_same_objects(tmp_path: Path) -> None:
    model = small_net()
    pcn.save(model, tmp_path / "small")
    fresh = conv_net()
    head = fresh.fc2.bias
    hook_calls: list[int] = []
    fresh.conv2.register_forward_hook(lambda *_: hook_calls.append(1))
    before = {name: id(tensor) for name, tensor in fresh.bn2.named_buffers()}
    pcn.load(fresh, tmp_path / "small")
    assert fresh.bn2.num_batches_tracked is not None
    assert id(fresh.bn2.num_batches_tracked) == before["num_batches_tracked"]
    assert head is not fresh.fc2.bias
    fresh(images())
    assert hook_calls == [1]


def test_an_empty_model_gets_its_memory_from_the_file(tmp_path: Path) -> None:
    model, x = small_net(), images()
    pcn.save(model, tmp_path / "small")
    with torch.device("meta"):
        empty = ConvNet().eval()
    pcn.load(empty, tmp_path / "small")
    assert not any(tensor.is_meta for tensor in all_tensors(empty).values())
    assert [p.requires_grad for p in empty.parameters()] == [p.requires_grad for p in model.parameters()]
    (tmp_path / "small" / WEIGHTS_FILE).write_bytes(b"")  # the tensors do not live in the file
    assert torch.equal(empty(x), model(x))


class Tied(nn.Module):
    """Its embedding is its output's weight, and a part of a table is a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(30, 12), nn.Linear(12, 12)
        self.output = nn.Linear(12, 30, bias=False)
        self.output.weight = self.embedding.weight
        table = torch.arange(8.0)
        self.register_buffer("table", table)
        self.register_buffer("part", table[:4])

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(torch.tanh(self.hidden(self.embedding(tokens)))) + self.part.sum()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tied_tensors_are_stored_once_and_stay_tied(device: str, tmp_path: Path) -> None:
    model, tokens = Tied(), torch.randint(30, (8, 20))
    pcn.compress_(model, [tokens], PCNConfig(rank=3))
    pcn.save(model, tmp_path / "small")
    assert "output.weight" not in load_file(tmp_path / "small" / WEIGHTS_FILE)
    with torch.device(device):
        fresh = Tied()
    pcn.load(fresh, tmp_path / "small")
    assert fresh.output.weight is fresh.embedding.weight
    assert torch.equal(fresh(tokens), model(tokens))


class TiedByData(nn.Module):
    """Two parameters in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.hidden = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 30)
        self.second.weight.data = self.first.weight.data

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(torch.tanh(self.second(torch.tanh(self.first(x)))))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_layers_that_share_memory_are_left_alone_and_stay_tied(device: str, tmp_path: Path) -> None:
    model, x = TiedByData(), torch.randn(40, 12)
    plan = pcn.compress_(model, [x], PCNConfig(rank=3, keep_outputs=0.5, skip_larger=False))
    assert plan.layers["first"].reason == "its weight is shared by 'first' and 'second'"
    assert [layer.name for layer in plan.transformed] == ["hidden"]
    assert not plan.slices
    pcn.save(model, tmp_path / "small")
    with torch.device(device):
        fresh = TiedByData()
    pcn.load(fresh, tmp_path / "small")
    assert fresh.second.weight.data_ptr() == fresh.first.weight.data_ptr()
    assert torch.equal(fresh(x), model(x))
    save_file(tensors_to_save(model := TiedByData()), tmp_path / "plain.safetensors")
    load_weights_(fresh := TiedByData(), tmp_path / "plain.safetensors")
    assert torch.equal(fresh(x), model(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_values_come_in_the_models_own_precision(dtype: torch.dtype, saved: Path) -> None:
    model = pcn.load(Mlp().to(dtype), saved)
    assert {tensor.dtype for tensor in all_tensors(model).values()} == {dtype}


def test_wrapped_models_are_saved_and_loaded_inside(tmp_path: Path) -> None:
    model, x = small_mlp(), vectors()
    pcn.save(nn.DataParallel(model), tmp_path / "small")
    model.cpu()  # where there are GPUs, DataParallel has moved it to one
    fresh = Mlp()
    wrapped = torch.compile(fresh, backend="eager")
    assert pcn.load(wrapped, tmp_path / "small") is wrapped
    assert torch.equal(fresh(x), model(x))


def test_nothing_is_read_that_could_run_code() -> None:
    """Models need no pickle; checkpoints of training are read as tensors and plain values only."""
    words = re.compile(r"\b(pickle|torch\.load|torch\.save|joblib|marshal|shelve|dill|eval\(|exec\()")
    known = (
        r"(no|without|needs no) pickle|\.eval\(|pickles|torch\.load\(.*weights_only=True|file that torch\.save wrote"
    )
    harmless = re.compile(known + r"|from pickle import UnpicklingError$")
    writers = {"checkpoints.py", "transformers.py"}
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in SOURCES.rglob("*.py")
        if path.name != "cifar10.py"  # whose unpickler takes arrays of numbers and nothing else, see its tests
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if words.search(line) and not harmless.search(line) and not (path.name in writers and "torch.save" in line)
    ]
    assert found == []


def test_a_model_without_a_plan_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"carries no plan: save its part '0', which does"):
        pcn.save(nn.Sequential(small_mlp()), tmp_path / "whole")
    with pytest.raises(PlanError, match=r"carries no plan: apply one first \(pcn.compress_\)"):
        pcn.save(Mlp(), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_model_that_its_plan_does_not_explain_is_not_saved(tmp_path: Path) -> None:
    model = small_mlp()
    model.extra = small_mlp()
    with pytest.raises(PlanError, match=r"'extra.fc1' is PCLinear, which is not what the model's plan says"):
        pcn.save(model, tmp_path / "x")
    model = small_mlp()
    model.fc2 = nn.Linear(24, 24)
    with pytest.raises(PlanError, match="'fc2' is Linear, which is not"):
        pcn.save(model, tmp_path / "x")


def test_state_that_needs_pickle_is_not_saved(tmp_path: Path) -> None:
    class Stateful(Mlp):
        def get_extra_state(self) -> Any:
            return {"anything": object()}

        def set_extra_state(self, state: Any) -> None:
            return None

    model = Stateful()
    pcn.compress_(model, [vectors()], PCNConfig(rank=3))
    with pytest.raises(PlanError, match="'_extra_state' in the model's state is not a dense tensor"):
        pcn.save(model, tmp_path / "x")
    with torch.device("meta"):
        empty = Mlp()
    pcn.make_plan(empty, None, PCNConfig(rank=3)).reshape_(empty)
    with pytest.raises(PlanError, match=r"'fc1.weight' in the model's state has no values yet"):
        pcn.save(empty, tmp_path / "x")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_saving_again_replaces_the_folder_and_leaves_nothing_behind(tmp_path: Path, saved: Path) -> None:
    before = contents(saved)
    model, x = small_mlp(), vectors()
    with torch.no_grad():
        model.fc2.weight.add_(1)
    pcn.save(model, saved)
    assert contents(saved).keys() == before.keys()
    assert contents(saved) != before
    assert torch.equal(pcn.load(Mlp(), saved)(x), model(x))
    assert os.listdir(tmp_path) == ["saved"]


def test_a_folder_can_be_an_empty_one_a_link_or_the_current_one(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    model = small_mlp()
    for folder in ("empty", "link", "link/"):
        pcn.save(model, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    pcn.save(model, "new")
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["empty", "link", "new"]
    assert sorted(os.listdir(tmp_path / "empty")) == sorted(os.listdir("new")) == [WEIGHTS_FILE, PLAN_FILE]


def test_folders_that_we_did_not_write_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("years")
    (tmp_path / "file").write_text("a file")
    for name in ("work", "file"):
        with pytest.raises(FileError, match=r"is not a folder that pcn.save wrote; give an empty or a new folder"):
            pcn.save(small_mlp(), tmp_path / name)
    assert (tmp_path / "work" / "thesis.tex").read_text() == "years"
    assert sorted(os.listdir(tmp_path)) == ["file", "work"]


def test_a_folder_is_swapped_in_one_step(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "it").write_text(name)
    put_in_place(tmp_path / "new", tmp_path / "old", aside=tmp_path / "aside")
    assert (tmp_path / "old" / "it").read_text() == "new"
    left = [path for path in (tmp_path / "new", tmp_path / "aside") if path.exists()]
    assert [(path / "it").read_text() for path in left] == ["old"]


class WithMore(nn.Module):
    """Has something in its state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}

    def set_extra_state(self, state: Any) -> None:
        assert state == {"version": 1}


def test_what_cannot_be_saved_without_pickle_says_how_it_can(tmp_path: Path) -> None:
    model, x = WithMore(), torch.randn(64, 20)
    pcn.compress_(model, [x], params=0.5)
    with pytest.raises(pcn.PlanError, match=r"without pickle: save its state_dict\(\) yourself, and get_plan"):
        pcn.save(model, tmp_path / "model")
    plan = pcn.get_plan(model)
    assert plan is not None
    again = WithMore()
    pcn.Plan.from_json(plan.to_json()).reshape_(again)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(x), model(x))


def test_a_compiled_part_is_told_from_another_model(tmp_path: Path) -> None:
    def built() -> nn.Sequential:
        return nn.Sequential(nn.Linear(20, 64), nn.Sequential(nn.Tanh(), nn.Linear(64, 64)), nn.Linear(64, 5))

    model = built()
    model[1] = torch.compile(model[1], backend="eager")
    pcn.compress_(model, [torch.randn(64, 20)], params=0.5)
    pcn.save(model, tmp_path / "model")
    with pytest.raises(FileError, match=r"'1._orig_mod.1', the model none; torch.compile\(part\) renames"):
        pcn.load(built(), tmp_path / "model")


def test_an_interrupt_between_two_renames_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pcn.save(small_mlp(), tmp_path / "model")
    before = (tmp_path / "model" / "plan.json").read_bytes()
    renames = iter([None, KeyboardInterrupt])  # on a system that cannot swap two folders at once
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        if (raised := next(renames, None)) is not None:
            raise raised
        real(source, target)

    monkeypatch.setattr("pcn.whole_files._exchange", lambda *_: False)
    monkeypatch.setattr("pcn.whole_files.os.replace", replace)
    with pytest.raises(KeyboardInterrupt):
        pcn.save(small_mlp(), tmp_path / "model")
    assert (tmp_path / "model" / "plan.json").read_bytes() == before
    assert os.listdir(tmp_path) == ["model"]


@contextmanager
def not_root() -> Iterator[None]:
    """Root may write anywhere: be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_where_nothing_may_be_written_the_old_model_stays() -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "saved"
        pcn.save(small_mlp(), folder)
        before = contents(folder)
        os.chmod(parent, stat.S_IRUSR | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH | stat.S_IROTH)
        with not_root(), pytest.raises(FileError, match=r"Permission denied.*what was there before is untouched"):
            pcn.save(small_mlp(), folder)
        assert contents(folder) == before
        os.chmod(folder / PLAN_FILE, 0)
        with not_root():
            refused(folder, "cannot read the plan .*Permission denied")
        os.chmod(folder / PLAN_FILE, 0o644)
        os.chmod(folder / WEIGHTS_FILE, 0)
        with not_root():
            refused(folder, "cannot read the weights")
        os.chmod(parent, 0o700)


def test_on_a_full_disk_the_old_model_stays(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no small disk can be mounted here")
    try:
        pcn.save(small_mlp(), tmp_path / "saved")
        before = contents(tmp_path / "saved")
        model = Mlp(width=1000)
        pcn.compress_(model, [vectors()], PCNConfig(rank=10))
        with pytest.raises(FileError, match=r"No space left on device.*untouched.*a disk with room"):
            pcn.save(model, tmp_path / "saved")
        assert contents(tmp_path / "saved") == before
        assert os.listdir(tmp_path) == ["saved"]
        pcn.load(Mlp(), tmp_path / "saved")
    finally:
        subprocess.run(["umount", tmp_path], check=True)


SAVE_FOR_EVER = """
import sys, torch, pcn
from small import Mlp, vectors
models = []
for fill in (1.0, 2.0):
    model = Mlp(width=400)
    pcn.compress_(model, [vectors()], pcn.PCNConfig(rank=8))
    torch.nn.init.constant_(model.fc2.weight, fill), torch.nn.init.constant_(model.fc3.bias, fill)
    models.append(model)
pcn.save(models[0], sys.argv[1])
print("started", flush=True)
while True:
    for model in models:
        pcn.save(model, sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.0, 0.013, 0.05, 0.11])
def test_a_killed_save_leaves_a_whole_model(delay_s: float, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCES.parent), str(Path(__file__).parents[1])])}
    with subprocess.Popen(
        [sys.executable, "-c", SAVE_FOR_EVER, tmp_path / "saved"], stdout=subprocess.PIPE, env=environment
    ) as child:
        assert child.stdout.readline() == b"started\n"
        time.sleep(delay_s)
        child.kill()
    model = pcn.load(Mlp(width=400), tmp_path / "saved")
    assert model.fc2.weight.unique().tolist() == model.fc3.bias.unique().tolist()


def test_missing_files(tmp_path: Path, saved: Path) -> None:
    refused(
        tmp_path / "nowhere",
        r"cannot read the plan \S*nowhere\S*: No such file or directory; give the folder that pcn.save wrote",
    )
    refused(saved / PLAN_FILE, "cannot read the plan")
    (saved / WEIGHTS_FILE).rename(saved / "x")
    refused(saved, "cannot read the weights")
    (saved / WEIGHTS_FILE).mkdir()
    refused(saved, "cannot read the weights")
    (saved / PLAN_FILE).unlink()
    refused(saved, "cannot read the plan")
    (saved / PLAN_FILE).mkdir()
    refused(saved, "is no plan")


def test_a_plan_that_never_ends_is_not_read(saved: Path) -> None:
    (saved / PLAN_FILE).unlink()
    (saved / PLAN_FILE).symlink_to("/dev/zero")
    refused(saved, "is no plan")
    (saved / PLAN_FILE).unlink()
    with (saved / PLAN_FILE).open("wb") as file:
        file.truncate(2**40)
    refused(saved, r"is not a file of at most 134,217,728 bytes")


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"not json", b"[]", b"{" * 100_000])
def test_garbage_instead_of_a_plan(text: bytes, saved: Path) -> None:
    (saved / PLAN_FILE).write_bytes(text)
    refused(saved, "plan")
    with pytest.raises(FileError):
        load_plan(saved / PLAN_FILE)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_weights(saved: Path, data: st.DataObject) -> None:
    """Cut short or overwritten anywhere in its header, a file is refused or still means the same."""
    whole = (saved / WEIGHTS_FILE).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        at, junk = data.draw(st.integers(0, header - 1)), data.draw(st.binary(min_size=1, max_size=12))
        damaged = whole[:at] + junk + whole[at + len(junk) :]
    (saved / WEIGHTS_FILE).write_bytes(damaged)
    model = Mlp()
    before = record(model)
    try:
        pcn.load(model, saved)
    except FileError:
        assert record(model) == before
    else:
        assert len(damaged) == len(whole)
    finally:
        (saved / WEIGHTS_FILE).write_bytes(whole)


def change_plan(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    plan = json.loads((folder / PLAN_FILE).read_text())
    change(plan)
    (folder / PLAN_FILE).write_text(json.dumps(plan))


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "fc1.weight", "__class__", "fc1.__dict__", "", "fc\x00", "fc4"]
)
def test_a_plan_with_names_that_the_model_does_not_have(name: str, saved: Path) -> None:
    change_plan(saved, lambda plan: plan["layers"][0].update(name=name))
    refused(saved, "the plan in .* does not fit this Mlp: .*; build the model with the sizes that it had before")


@pytest.mark.parametrize("tensor", ["../x", "fc1.grad", "training", "fc9.weight"])
def test_a_plan_that_cuts_what_is_not_there(tensor: str, saved: Path) -> None:
    change_plan(saved, lambda plan: plan["slices"].update({tensor: {"0": {"size": 24, "kept": [0]}}}))
    refused(saved, f"the plan cuts {tensor!r}, which the model does not have")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan["layers"][1].update(in_features=10**30, kept_inputs=10**30), "'fc2' has .* made for"),
        (lambda plan: plan["layers"][1].update(rank=7), "'fc2.basis' .* of shape|'fc2.weight' .* of shape"),
        (lambda plan: plan["layers"][1].update(rank=10**12), "impossible sizes"),
        (lambda plan: plan["layers"][1].pop("rank"), "holds 'fc2.basis', which the planned model does not have"),
        (
            lambda plan: plan["layers"][1].update(keep_dropped=True),
            r"lacks 1 tensors .* 'fc2.offset_weight' among them",
        ),
        (lambda plan: plan["slices"].update({"fc3.bias": {"0": {"size": 5, "kept": [0]}}}), "'fc3' .* than its slices"),
    ],
)
def test_a_plan_that_is_not_the_weights_own(change: Callable[[Any], None], message: str, saved: Path) -> None:
    change_plan(saved, change)
    refused(saved, message)


def test_a_plan_that_would_break_ties_is_refused(tmp_path: Path) -> None:
    model = Tied()
    pcn.compress_(model, [torch.randint(30, (8, 20))], PCNConfig(rank=3))
    pcn.save(model, tmp_path / "small")
    change_plan(tmp_path / "small", lambda plan: [item.update(rank=2) for item in plan["layers"]])
    refused(tmp_path / "small", "'output' has a rank in the plan but must be left alone", Tied())


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors)
    save_file(tensors, folder / WEIGHTS_FILE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("fc2.basis"), "lacks 1 tensors of the planned model, 'fc2.basis' among them"),
        (lambda t: t.update(extra=torch.ones(1)), "holds 'extra', which the planned model does not have"),
        (lambda t: t.update({"fc2.weight": torch.ones(24, 4)}), r"'fc2.weight' in .* of shape \(24, 4\), the planned"),
        (lambda t: t.update({"fc2.weight": torch.ones(24, 3).long()}), "is torch.int64 .* weights of another model"),
        (lambda t: t.update({"fc2.weight": torch.ones(24, 3) + 0j}), "is torch.complex64"),
        (lambda t: t.clear(), "lacks 12 tensors"),
    ],
)
def test_weights_of_another_model(change: Callable[[Any], None], message: str, saved: Path) -> None:
    change_weights(saved, change)
    refused(saved, message)


def test_models_that_the_files_are_not_for(saved: Path) -> None:
    refused(saved, "does not fit this Mlp: 'fc1' has", Mlp(30))
    refused(saved, "does not fit this ConvNet: 'fc1' has", conv_net())
    refused(saved, "does not fit this Linear: the plan has a layer 'fc1'", nn.Linear(3, 3))
    refused(saved, "transformed already; build the original one anew", small_mlp(), PlanError)


def test_who_may_read_a_folder_may_read_what_is_saved_there(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    pcn.save(small_mlp(), folder)
    folder.chmod(0o2775)
    pcn.save(small_mlp(), folder)
    assert folder.stat().st_mode & 0o7777 == 0o2775
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


def test_the_folder_that_one_is_in_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match="the folder that this program is in"):
        pcn.save(small_mlp(), ".")
    assert Path.cwd() == tmp_path


def with_head(classes: int | None) -> nn.Sequential:
    layers = [nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
    return nn.Sequential(*layers, *([] if classes is None else [nn.Linear(64, classes)]))


@pytest.mark.parametrize("classes", [5, 7, None])
def test_another_head_than_the_plan_saw_is_saved_and_loaded(classes: int | None, tmp_path: Path) -> None:
    model, x = with_head(5), torch.randn(100, 20)
    pcn.compress_(model, [x], PCNConfig(rank=16, exclude=("4",)))
    if classes != 5:
        model.pop(4)
    if classes == 7:
        model.append(nn.Linear(64, 7))
    pcn.save(model, tmp_path / "saved")
    again = pcn.load(with_head(classes), tmp_path / "saved")
    assert torch.equal(again(x), model(x))


def test_what_was_cut_and_is_cut_no_longer_is_not_saved(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64))
    rules = {"0": LayerRule(keep_outputs=32), "3": LayerRule(rank=8)}
    pcn.compress_(model, [torch.randn(100, 20)], PCNConfig(layers=rules))
    model[1] = nn.BatchNorm1d(64)
    with pytest.raises(PlanError, match=r"'1.weight' has the shape \(64,\), which is not what is left by"):
        pcn.save(model, tmp_path / "saved")


def test_a_model_that_its_plan_has_not_changed_can_be_loaded_into(tmp_path: Path) -> None:
    model, x = with_head(5), torch.randn(100, 20)
    with pytest.warns(UserWarning, match="changes no layer"):
        pcn.compress_(model, [x], PCNConfig(rank=1.0))
    pcn.save(model, tmp_path / "saved")
    other = copy.deepcopy(model)
    nn.init.zeros_(other[0].weight)
    assert torch.equal(pcn.load(other, tmp_path / "saved")(x), model(x))


def test_a_plan_that_is_none_is_named(saved: Path) -> None:
    (saved / "plan.json").write_text("{")
    refused(saved, f"{re.escape(str(saved / 'plan.json'))}: the plan is not JSON")
