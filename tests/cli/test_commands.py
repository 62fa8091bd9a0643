"""analyze, plan, compress and export: one after the other, from files alone, with the same flags."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import pcn
from pcn.cli import main
from pcn.costs.count import count
from pcn.nn import PCModule
from pcn.training.settings import Settings
from small import Mlp, images, vectors

ROOT = Path(__file__).parents[1]  # the commands import their models from here


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    assert main(list(arguments)) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines()[-1].startswith("pcn: error: ")
    return output.err


def trained(path: Path = Path("weights.safetensors")) -> Mlp:
    """A model whose weights and inputs lie in files."""
    model = Mlp(64)
    save_file(model.state_dict(), path)
    np.save("inputs.npy", vectors(600).double().numpy())
    return model


MLP = ("--model", "small:Mlp", "--model-options", "width=64", "--weights", "weights.safetensors")
LOOK = (*MLP, "--inputs", "inputs.npy")


def test_from_a_model_and_its_inputs_to_an_exported_network(capsys: pytest.CaptureFixture[str]) -> None:
    model = trained()
    looked = document(capsys, "analyze", *LOOK, "--rank", "90%", "--out", "stats.safetensors")
    assert [row["layer"] for row in looked["layers"]] == ["fc1", "fc2", "fc3"]
    assert looked["layers"][1]["samples"] == 600
    stats = pcn.Statistics.load("stats.safetensors")
    assert looked["layers"][1]["directions"] == stats.spectrum("fc2").count_explaining(0.9)

    saved = ("--stats", "stats.safetensors")
    planned = document(capsys, "plan", *MLP, *saved, "--rank", "90%", "--out", "plan.json")
    plan = pcn.Plan.from_json(Path("plan.json").read_text())
    assert plan == pcn.make_plan(model, stats, pcn.PCNConfig(rank=pcn.ExplainedVariance(0.9)))
    assert planned["plan"] == json.loads(plan.to_json())
    assert planned["before"]["trainable"] == count(model).trainable

    done = document(capsys, "compress", *MLP, *saved, "--plan", "plan.json", "--out", "small")
    assert done["after"] == planned["after"]
    small = pcn.load(Mlp(64), "small").eval()
    plan.apply_(model, stats)
    batch = vectors(5)
    torch.testing.assert_close(small(batch), model(batch))
    assert (count(small).trainable, count(small).total) == (done["after"]["trainable"], done["after"]["stored"])
    assert 0 < done["relative_change"] < 0.5

    compressed = ("--model", "small:Mlp", "--model-options", "width=64", "--weights", "small")
    exported = document(capsys, "export", *compressed, "--to", "folded", "--out", "folded.safetensors")
    assert exported["difference"] is None  # nothing went through it
    original = Mlp(64)
    original.load_state_dict(load_file("folded.safetensors"))
    torch.testing.assert_close(original(batch), small(batch), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("flag", ["--centred", "--no-centred"])
def test_the_directions_that_are_shown_are_those_that_a_plan_keeps(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trained()
    np.save("inputs.npy", vectors(600).double().numpy() * 0.2 + 3)
    looked = document(capsys, "analyze", *LOOK, "--rank", "99.9%", flag, "--out", "stats.safetensors")
    saved = ("--stats", "stats.safetensors", "--no-skip-larger")
    planned = document(capsys, "plan", *MLP, *saved, "--rank", "99.9%", flag, "--out", "plan.json")
    ranks = {row["layer"]: row["directions"] for row in looked["layers"]}
    assert ranks == {layer["name"]: layer["rank"] for layer in planned["plan"]["layers"]}


def test_what_is_exported_to_onnx_is_what_onnxruntime_computes(capsys: pytest.CaptureFixture[str]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    trained()
    document(capsys, "compress", *LOOK, "--rank", "0.25", "--out", "small")
    flags = ("--model", "small:Mlp", "--model-options", "width=64", "--weights", "small", "--inputs", "inputs.npy")
    done = document(capsys, "export", *flags, "--to", "onnx", "--dynamic-batch", "--out", "out/model.onnx")
    assert done["difference"] < 1e-5
    session = onnxruntime.InferenceSession("out/model.onnx", providers=["CPUExecutionProvider"])
    batch = vectors(9)
    (result,) = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
    expected = pcn.load(Mlp(64), "small")(batch).detach()
    torch.testing.assert_close(torch.from_numpy(result), expected, atol=1e-5, rtol=1e-4)


def test_the_tables_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    trained()
    assert shown(capsys, "analyze", *LOOK).startswith("directions by ExplainedVariance(share=0.95)")
    text = shown(capsys, "plan", *LOOK, "--params", "0.5", "--out", "plan.json")
    for words in ("trained", "stored", "The whole model", "FLOPs per sample", "plan in plan.json"):
        assert words in text
    text = shown(capsys, "compress", *LOOK, "--rank", "8", "--exclude", "fc1", "--out", "small")
    assert "saved in small" in text
    assert "the outputs have moved by" in text
    flags = ("--model", "small:Mlp", "--model-options", "width=64", "--weights", "small")
    text = shown(capsys, "export", *flags, "--to", "safetensors", "--form", "dense", "--out", "x.safetensors")
    assert text.startswith("x.safetensors: ")
    assert f"{count(Mlp(64)).total:,} stored parameters" in text  # what the dense form holds, not the small network
    assert load_file("x.safetensors").keys() == Mlp().state_dict().keys()


def test_a_basis_that_needs_gradients_gets_them(capsys: pytest.CaptureFixture[str]) -> None:
    model = trained()
    wish = ("--rank", "8", "--basis", "balanced")
    document(capsys, "analyze", *LOOK, "--out", "plain.safetensors")
    said = refused(capsys, "plan", *MLP, "--stats", "plain.safetensors", *wish)
    assert "pcn analyze --basis balanced" in said
    document(capsys, "analyze", *LOOK, "--basis", "balanced", "--out", "stats.safetensors")
    document(capsys, "plan", *MLP, "--stats", "stats.safetensors", *wish, "--out", "plan.json")
    ways = ("--stats", "stats.safetensors", "--plan", "plan.json"), ("--inputs", "inputs.npy", "--plan", "plan.json")
    outputs, batch = [], vectors(5)
    for number, way in enumerate((*ways, ("--inputs", "inputs.npy", *wish))):
        document(capsys, "compress", *MLP, *way, "--out", f"small{number}")
        outputs.append(pcn.load(Mlp(64), f"small{number}").eval()(batch))
    stats = pcn.Statistics.load("stats.safetensors")
    pcn.make_plan(model, stats, pcn.PCNConfig(rank=8, basis="balanced")).apply_(model, stats)
    for found in outputs:
        torch.testing.assert_close(found, model(batch), rtol=1e-4, atol=1e-5)


def test_the_same_rules_mean_the_same_as_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    model = trained()
    stats = pcn.analyze(model, [torch.from_numpy(np.load("inputs.npy")).float()])

    def ranks(*flags: str) -> dict[str, int | None]:
        plan = document(capsys, "plan", *LOOK, *flags)["plan"]
        return {layer["name"]: layer.get("rank") for layer in plan["layers"]}

    def expected(config: pcn.PCNConfig) -> dict[str, int | None]:
        return {name: layer.rank for name, layer in pcn.make_plan(model, stats, config).layers.items()}

    assert ranks("--rank", "16") == expected(pcn.PCNConfig(rank=16))
    assert ranks("--rank", "0.125") == expected(pcn.PCNConfig(rank=0.125))
    assert ranks("--rank", "variance > 0.01") == expected(pcn.PCNConfig(rank=pcn.Threshold(0.01)))
    rules = {"fc2": pcn.LayerRule(rank=5), "fc3": pcn.LayerRule(rank=pcn.ExplainedVariance(0.5))}
    assert ranks("--layers", "fc2=5", "fc3=50%", "--no-skip-larger", "--exclude", "fc1") == expected(
        pcn.PCNConfig(layers=rules, exclude=["fc1"], skip_larger=False)
    )
    for name in ("keep_outputs", "output_rank"):
        for number in (1, 1.0, 7, 0.5):
            config = pcn.PCNConfig(rank=0.5, skip_larger=False, **{name: number})
            flags = ("--rank", "0.5", "--no-skip-larger", f"--{name.replace('_', '-')}", str(number))
            planned = document(capsys, "plan", *LOOK, *flags)["plan"]
            assert planned == json.loads(pcn.make_plan(model, stats, config).to_json())
    planned = document(capsys, "plan", *LOOK, "--params", "0.3", "--worth", "divergence")
    assert planned["after"]["trainable"] <= 0.3 * count(model).trainable
    planned = document(capsys, "plan", *LOOK, "--flops", "0.8")
    assert planned["after"]["flops_per_sample"] <= 0.81 * planned["before"]["flops_per_sample"]


def test_a_budget_of_memory_is_shown_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    trained()
    flags = ("--memory-mib", "0.6", "--batch", "8", "--optimizer", "adam")
    planned = document(capsys, "plan", *LOOK, *flags)["plan"]["usage"]
    before, after = (sum(n for part, n in planned[side].items() if part != "time_ns") for side in ("before", "after"))
    assert after <= 0.6 * before
    assert planned["after"]["optimizer_bytes"] == 2 * planned["after"]["gradients_bytes"]
    text = shown(capsys, "plan", *LOOK, *flags)
    for part in ("weights", "gradients", "optimizer", "activations"):
        assert f"MiB of {part}" in text
    text = shown(capsys, "compress", *LOOK, "--step-ms", "1000", "--batch", "8", "--out", "small")
    assert "ms for a step, forward and backward" in text
    said = refused(capsys, "plan", *LOOK, "--memory-mib", "0.01")
    assert "the least would be" in said


def test_shapes_alone_are_enough_for_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--model", "wide_resnet20", "--pcn", "wide_resnet20-pcn1", "--shapes-only")
    planned = document(capsys, "plan", *flags, "--random-inputs", "2,3,32,32")
    assert planned["after"]["trainable"] == 1_094_154  # the paper's
    assert planned["after"]["flops_per_sample"] < planned["before"]["flops_per_sample"]
    assert document(capsys, "plan", *flags)["after"]["flops_per_sample"] is None
    assert "needs statistics" in refused(capsys, "plan", *flags[:2], "--shapes-only", "--rank", "90%")
    assert "leave --shapes-only out" in refused(capsys, "plan", *flags[:2], "--shapes-only", "--params", "9", code=2)


def test_a_run_of_pcn_train_brings_its_model_weights_and_data(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--model small_network:build --data digits --epochs 1 --batch 64 --optimizer adam --learning-rate 0.003"
    sys.path.insert(0, str(ROOT / "training"))
    document(capsys, "train", *flags.split(), "--device", "cpu", "--out", "run")
    run = ("--run", "run", "--device", "cpu")
    looked = document(capsys, "analyze", *run, "--calibration-samples", "100", "--exclude", "0")
    assert {row["samples"] for row in looked["layers"]} >= {100}
    assert "0" in looked["left_alone"]
    document(capsys, "compress", *run, "--rank", "0.25", "--out", "small")
    exported = document(
        capsys, "export", "--model", "small_network:build", "--weights", "small", "--to", "torch.export",
        "--data", "digits", "--out", "x.pt2",
    )  # fmt: skip
    assert exported["difference"] < 1e-5
    again = torch.export.load("x.pt2").module()
    assert not any(isinstance(module, PCModule) for module in again.modules())


def test_text_models_take_tokens_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    options = [
        "hidden_size=32",
        "num_hidden_layers=1",
        "num_attention_heads=2",
        "intermediate_size=64",
        "vocab_size=50",
    ]
    model = ("--model", "hf:bert", "--model-options", *options)
    save_file({"input_ids": torch.randint(50, (40, 10)), "attention_mask": torch.ones(40, 10).long()}, "t.safetensors")
    looked = document(capsys, "analyze", *model, "--inputs", "t.safetensors")
    assert looked["layers"][0]["samples"] == 400
    assert main(["plan", *model, "--rank", "8", "--random-inputs", "input_ids=4,10:50", "--json"]) == 0
    assert "encoder.layer.0.output.dense" in capsys.readouterr().out


def test_noise_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "--model", "small:Mlp", "--random-inputs", "50,12", "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["layers"]
    assert output.err.startswith("pcn: warning: noise has no small subspaces")
    assert output.err.count("\n") == 1


def test_what_is_missing_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    trained()
    assert "say what to look at: --data" in refused(capsys, "analyze", *MLP, code=2)
    assert "say what goes in" in refused(capsys, "export", *MLP, "--to", "onnx", "--out", "x.onnx", code=2)
    wrong = ("compress", *LOOK, "--plan", "plan.json", "--rank", "3", "--out", "small")
    assert "leave --rank out" in refused(capsys, *wrong, code=2)
    Path("taken").touch()
    said = refused(capsys, "export", *LOOK, "--to", "safetensors", "--out", "taken/x.safetensors")
    assert "cannot write into taken" in said
    assert "there is no device 'gpu': give cpu or cuda" in refused(capsys, "analyze", *LOOK, "--device", "gpu")
    assert "ends in .onnx" in refused(capsys, "export", *LOOK, "--to", "onnx", "--out", "x.bin", code=2)
    wrong = ("export", *LOOK, "--to", "folded", "--dynamic-batch", "--out", "x.safetensors")
    assert "--dynamic-batch goes with" in refused(capsys, *wrong, code=2)


def test_every_command_makes_the_folder_that_it_writes_into(capsys: pytest.CaptureFixture[str]) -> None:
    trained()
    looked = document(capsys, "analyze", *LOOK, "--out", "new/a/stats.safetensors")
    planned = document(capsys, "plan", *LOOK, "--rank", "8", "--out", "new/b/plan.json")
    small = document(capsys, "compress", *LOOK, "--rank", "8", "--out", "new/c/small")
    exported = document(capsys, "export", *LOOK, "--to", "safetensors", "--out", "new/d/x.safetensors")
    assert all(Path(done["file"]).is_file() for done in (looked, planned, exported))
    assert Path(small["folder"], "plan.json").is_file()


@pytest.mark.parametrize("command", ["analyze", "plan", "compress", "export", "report", "demo"])
def test_what_cannot_be_written_is_said_before_anything_is_measured(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained()

    def measured(*_: object, **__: object) -> None:
        raise AssertionError("too late to say so")

    for name in ("analyze.look", "plan.look", "compress.look", "export.read_batches", "report.of_run", "demo.compare"):
        monkeypatch.setattr(f"pcn.cli.{name}", measured)
    Path("taken").touch()
    Path("folder/other").mkdir(parents=True)
    given = {"report": ("run",), "demo": (), "export": (*LOOK, "--to", "safetensors")}.get(command, LOOK)
    flag = "--report" if command == "demo" else "--out"
    said = refused(capsys, command, *given, flag, "taken/x.safetensors")
    assert "cannot write into taken: " in said
    assert f"; give {flag} in another folder" in said
    if command == "compress":
        assert "is not a folder that pcn.save wrote" in refused(capsys, command, *given, flag, "folder")
    elif command != "export":  # which says first how its file must end
        assert f"{flag} folder is a folder: give the file" in refused(capsys, command, *given, flag, "folder")


def test_a_file_that_is_not_there_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    trained()
    for flag, more in (("--stats", ()), ("--plan", ("--inputs", "inputs.npy"))):
        said = refused(capsys, "compress", *MLP, *more, flag, "nosuch", "--out", "small")
        assert said.count("nosuch") == 1
        assert ": No such file or directory; give a file that pcn " in said
        assert "Errno" not in said


def test_what_cannot_be_done_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    trained()
    small = ("--model", "small:Mlp", "--inputs", "inputs.npy")
    assert "'fc1.weight' has shape (64, 12)" in refused(capsys, "analyze", *small, "--weights", "weights.safetensors")
    both = ("--rank", "3", "--params", "9")
    assert "a budget chooses the ranks itself" in refused(capsys, "plan", *LOOK, *both, code=2)
    assert "no layer is called 'fc9'" in refused(capsys, "plan", *LOOK, "--exclude", "fc9")
    assert "give a folder of pcn train" in refused(capsys, "plan", "--run", "nowhere")
    assert main(["analyze", *LOOK, "--out", "stats.safetensors"]) == 0
    capsys.readouterr()
    other = ("--model", "small:Residual", "--stats", "stats.safetensors")
    assert "is about another model" in refused(capsys, "plan", *other, "--rank", "3")
    worth = ("--stats", "stats.safetensors", "--params", "0.5", "--worth", "divergence")
    assert "give batches in place of --stats" in refused(capsys, "plan", *MLP, *worth, code=2)
    wider = ("--model", "small:Mlp", "--model-options", "width=65", "--stats", "stats.safetensors")
    assert "'fc1' has another shape" in refused(capsys, "plan", *wider, "--rank", "3")
    layer = nn.Sequential(OrderedDict(body=nn.Linear(12, 5)))
    pcn.analyze(layer, [vectors(600)]).save("layer.safetensors")
    container = ("--model", "small:Branching", "--stats", "layer.safetensors")
    assert "'body' is no such layer" in refused(capsys, "plan", *container, "--rank", "3")
    assert "carries no plan" in refused(capsys, "export", *LOOK, "--to", "folded", "--out", "x.safetensors")


@pytest.mark.parametrize("junk", ["", "{}", "[1, 2", '{"format": "pcn-plan"}', "\x00\x01"])
def test_what_is_no_plan_is_told_from_what_pcn_plan_writes(capsys: pytest.CaptureFixture[str], junk: str) -> None:
    trained()
    Path("junk.json").write_text(junk)
    for name in ("junk.json", "nothing.json", "."):
        said = refused(capsys, "compress", *LOOK, "--plan", name, "--out", "small")
        assert "pcn: error: --plan: " in said
        assert said.endswith("; give a file that pcn plan --out wrote\n")
        assert "pcn.save" not in said


@pytest.mark.parametrize(
    ("prefix", "wrapper"), [("module.", "DistributedDataParallel"), ("_orig_mod.", "torch.compile")]
)
def test_weights_of_a_wrapper_are_told_by_their_names(
    capsys: pytest.CaptureFixture[str], prefix: str, wrapper: str
) -> None:
    wrapped = {prefix + name: tensor for name, tensor in trained().state_dict().items()}
    save_file(wrapped, "weights.safetensors")
    said = refused(capsys, "analyze", *LOOK)
    assert f"names begin with '{prefix}' in the state dict of {wrapper}" in said
    save_file({f"body.{name}": tensor for name, tensor in wrapped.items()}, "weights.safetensors")
    assert "names begin with" not in refused(capsys, "analyze", *LOOK)


def test_a_budget_that_steps_put_out_of_reach_is_met_as_the_error_says(capsys: pytest.CaptureFixture[str]) -> None:
    trained()
    assert "with --rank-step 1 it would be" in refused(capsys, "plan", *LOOK, "--params", "0.12")
    assert main(["plan", *LOOK, "--params", "0.12", "--rank-step", "1"]) == 0


def test_a_plan_advises_flags_and_not_python(capsys: pytest.CaptureFixture[str]) -> None:
    trained()
    assert main(["plan", *LOOK, "--params", "0.9"]) == 0
    shown = capsys.readouterr().out
    assert "stay unused, as no layer may get larger or slower (--no-skip-larger lets them)" in shown
    assert "PCNConfig" not in shown
    assert main(["plan", *LOOK, "--params", "0.9", "--keep-dropped"]) == 0
    assert "not counting the weights that --keep-dropped keeps beside them" in capsys.readouterr().out
    assert "; --keep-dropped keeps each layer's weight" in refused(
        capsys, "plan", *LOOK, "--keep-dropped", "--stored", "0.5"
    )
    assert main(["plan", *LOOK, "--params", "0.9", "--no-skip-larger"]) == 0
    assert "--no-skip-larger" not in capsys.readouterr().out
    both = "--params", "0.5", "--memory-mib", "0.5", "--patterns"
    assert "so give that, as in --kernel-rank 4" in refused(capsys, "plan", *LOOK, *both, code=2)


def test_what_was_cut_already_is_cut_anew_as_the_error_says(capsys: pytest.CaptureFixture[str]) -> None:
    trained()
    assert main(["compress", *LOOK, "--rank", "8", "--out", "small"]) == 0
    capsys.readouterr()
    mlp = ("--model", "small:Mlp", "--model-options", "width=64")
    for command in (("analyze",), ("plan",), ("compress", "--out", "smaller")):
        said = refused(capsys, *command, *mlp, "--weights", "small", "--inputs", "inputs.npy", "--rank", "4")
        assert "pcn.fold_" not in said
        assert "the model in small has been transformed already: write it with plain layers" in said
    given = re.search(r"\(pcn (export .*)\), then give (--weights \S+) here", said)
    assert given is not None
    document(capsys, *given[1].replace("...", "width=64").split())
    done = document(capsys, *command, *mlp, *given[2].split(), "--inputs", "inputs.npy", "--rank", "4")
    assert {layer.get("rank") for layer in done["plan"]["layers"]} >= {4}


def test_what_does_not_fit_the_model_is_said_in_flags(capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(ROOT))
    save_file({"a": torch.ones(8, 12), "z": torch.ones(8, 12)}, "other.safetensors")
    save_file({"x": torch.ones(8, 13)}, "wide.safetensors")
    mlp = ("--model", "small:Mlp")
    for name in ("other.safetensors", "wide.safetensors"):
        for command in (("analyze",), ("plan", "--memory-mib", "0.9"), ("export", "--to", "onnx", "--out", "x.onnx")):
            said = refused(capsys, *command, *mlp, "--inputs", name)
            assert f"save the tensors of {name} by the names of the model's arguments" in said
            assert "forward=" not in said
    for noise in ("y=8,12", "8,13"):
        said = refused(capsys, "analyze", *mlp, "--random-inputs", noise)
        assert "give --random-inputs in the shapes that the model takes" in said
        assert "by the names of the model's arguments (NAME=SHAPE)" in said
    assert "give --inputs FILE with what the model takes" in refused(capsys, "analyze", *mlp, "--data", "digits")


def normed(inputs: int = 12) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


def test_a_batch_of_one_sample_is_advised_about_in_flags(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("odd.npy", vectors(129).numpy())
    model, odd = ("--model", f"{__name__}:normed"), ("--inputs", "odd.npy")
    one = "has one sample, of which batch norm takes no statistics: "
    for mode in ("batch", "train"):
        said = refused(capsys, "analyze", *model, *odd, "--analysis-mode", mode)
        assert said.endswith(f"batch 1 {one}save a sample more or less in odd.npy, or --analysis-mode eval\n")
    said = refused(capsys, "plan", *model, "--random-inputs", "1,12", "--analysis-mode", "batch", "--rank", "4")
    assert said.endswith(f"{one}give --random-inputs a sample more or less, or --analysis-mode eval\n")
    said = refused(capsys, "plan", *model, *odd, "--memory-mib", "0.9", "--batch", "1")
    assert said.endswith(f"the batch in train mode {one}give --batch 2 or more\n")
    digits = (*model, "--model-options", "inputs=64", "--data", "digits", "--calibration-samples", "1")
    said = refused(capsys, "analyze", *digits, "--analysis-mode", "batch")
    assert said.endswith(f"{one}give --calibration-samples a sample more or less, or --analysis-mode eval\n")
    run = ("--epochs", "2", "--switch-at", "1", "--params", "0.9", "--out", "run")
    assert main(["train", *digits, *run]) == 1
    assert "give --calibration-samples a sample more" in capsys.readouterr().err
    assert document(capsys, "analyze", *model, *odd)["layers"]


def test_files_of_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", "small:ConvNet")
    batch = images(200)
    np.savez("named.npz", images=batch.numpy())
    torch.save(batch, "one.pt")
    torch.save({"images": batch}, "named.pt")
    results = [document(capsys, "analyze", *model, "--inputs", name) for name in ("named.npz", "one.pt", "named.pt")]
    assert results[0] == results[1] == results[2]
    torch.save([batch, 3], "list.pt")
    assert "holds a list: save one tensor" in refused(capsys, "analyze", *model, "--inputs", "list.pt")
    assert "there is no file nothing.pt" in refused(capsys, "analyze", *model, "--inputs", "nothing.pt")
    Path("x.txt").write_text("1")
    assert "tensors are read from .pt" in refused(capsys, "analyze", *model, "--inputs", "x.txt")
    for suffix, writer in ((".npy", "numpy.save"), (".npz", "numpy.savez")):
        Path(f"x{suffix}").write_text("1")
        said = refused(capsys, "analyze", *model, "--inputs", f"x{suffix}")
        assert said == f"pcn: error: x{suffix} is not a file that {writer} wrote: write one with it, of numbers alone\n"
    for junk in (b"", b"hello", b"junk", b"\x80\x02junk", b"PK\x03\x04junk", bytes(range(256))):
        Path("junk.pt").write_bytes(junk)
        said = refused(capsys, "analyze", *model, "--inputs", "junk.pt")
        assert "junk.pt is not a file that torch.save wrote, or not a whole one; save one tensor, or a dict" in said
    torch.save(nn.Linear(2, 3), "module.pt")
    said = refused(capsys, "analyze", *model, "--inputs", "module.pt")
    assert said == "pcn: error: module.pt holds more than tensors; save one tensor, or a dict of tensors by name\n"
    objects = np.array([{}], dtype=object)
    np.save("objects.npy", objects, allow_pickle=True)
    np.savez("objects.npz", images=objects)
    for name in ("objects.npy", "objects.npz"):
        assert f"{name} holds Python objects: save arrays of" in refused(capsys, "analyze", *model, "--inputs", name)
    Path("part.npz").write_bytes(Path("named.npz").read_bytes()[:500])
    assert "give a whole file" in refused(capsys, "analyze", *model, "--inputs", "part.npz")
    assert "give a shape" in refused(capsys, "analyze", *model, "--random-inputs", "3x4", code=2)
    assert "a name of its own" in refused(capsys, "analyze", *model, "--random-inputs", "3,4", "5,6", code=2)


def test_as_a_process_it_prints_json_and_nothing_else() -> None:
    flags = ("analyze", "--model", "small:Mlp", "--random-inputs", "40,12", "--json")
    command = [sys.executable, "-m", "pcn", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=ROOT)
    assert done.returncode == 0
    assert len(json.loads(done.stdout)["layers"]) == 3
    assert done.stderr.startswith("pcn: warning: noise")
    assert done.stderr.count("\n") == 1


def test_an_interrupt_and_a_warning_are_one_line_each(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "noisy_factory.py").write_text(
        "import warnings\n\n"
        "def build():\n"
        "    warnings.simplefilter('always')\n"
        "    warnings.warn('said\\nin two lines')\n"
        "    raise KeyboardInterrupt\n"
    )
    assert main(["analyze", "--model", "noisy_factory:build", "--random-inputs", "2,3"]) == 130
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "pcn: warning: said in two lines\npcn: stopped\n")


def test_the_folder_of_a_run_is_no_weights(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", "small:ConvNet", "--weights", "runs/first")
    Path("runs/first").mkdir(parents=True)
    Path("runs/first/settings.json").write_text(Settings(model="small:ConvNet").to_json())
    Path("runs/first/plan.json").write_text("{}")
    said = "pcn: error: --weights runs/first: this is a run of pcn train: give --run runs/first"
    assert refused(capsys, "analyze", *model, "--random-inputs", "2,3,8,8") == f"{said}\n"
    Path("runs/first/model").mkdir()
    assert refused(capsys, "export", *model, "--to", "folded", "--out", "x.safetensors") == (
        f"{said}, or --weights runs/first/model\n"
    )


def test_inputs_without_samples_are_not_the_models_fault(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("empty.npy", np.zeros((0, 12), dtype=np.float32))
    torch.save({"x": torch.zeros(0, 12)}, "empty.pt")
    for name in ("empty.npy", "empty.pt"):
        for command in (("analyze",), ("plan", "--memory-mib", "0.9"), ("export", "--to", "onnx", "--out", "x.onnx")):
            said = refused(capsys, *command, "--model", "small:Mlp", "--inputs", name)
            assert said.startswith(f"pcn: error: {name} holds no samples: ")


def test_a_run_that_has_not_ended_is_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    Path("run/settings.json").write_text(Settings(model="small:ConvNet").to_json())
    said = refused(capsys, "analyze", "--run", "run")
    assert "the run in run has not ended: the same pcn train command takes it up again" in said
