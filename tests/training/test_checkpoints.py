"""Checkpoints: whole or not there; a damaged one is passed over; a full disk loses nothing."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import pcn
from pcn.errors import CheckpointError
from pcn.training import RunFolder, Settings, Trainer, load_data
from pcn.training.checkpoints import Checkpoints
from pcn.training.events import Events

CPU = torch.device("cpu")


def state(step: int) -> dict[str, object]:
    return {"step": step, "weights": torch.full((1000,), float(step))}


def test_the_newest_is_read_and_old_ones_go(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 20, 3000):
        checkpoints.write(step, state(step))
    found, damaged = checkpoints.newest(CPU)
    assert found is not None
    assert found["step"] == 3000
    assert torch.equal(found["weights"], state(3000)["weights"])
    assert damaged == []
    assert len(list(tmp_path.iterdir())) == 2


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none").newest(CPU) == (None, [])


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, damage: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(1, state(1))
    last = checkpoints.write(2, state(2))
    data = bytearray(last.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    last.write_bytes({"truncated": data[:-100], "flipped": data, "emptied": b""}[damage])
    found, damaged = checkpoints.newest(CPU)
    assert found is not None
    assert found["step"] == 1
    assert damaged == [last.name]


def test_a_damaged_one_takes_no_whole_ones_place(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(50, state(50))
    last = checkpoints.write(100, state(100))
    last.write_bytes(b"half of")
    checkpoints.newest(CPU)
    assert last.with_name(f"{last.name}.damaged").read_bytes() == b"half of"
    for step in (60, 70, 80):
        newest = checkpoints.write(step, state(step))
    assert sorted(int(path.name[:12]) for path in tmp_path.glob("*.pt")) == [70, 80]
    newest.write_bytes(b"half of")
    found, damaged = checkpoints.newest(CPU)
    assert found is not None
    assert (found["step"], damaged) == (70, [newest.name])


def test_when_all_are_damaged_nothing_starts_over_silently(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(1, state(1)).write_bytes(b"nothing")
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged"):
            checkpoints.newest(CPU)


def test_what_a_killed_process_was_writing_is_cleared_away(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(1, state(1))
    (tmp_path / ".000000000002-0123456789abcdef.pt").write_bytes(b"half of")
    found, _ = checkpoints.newest(CPU)
    assert found is not None
    assert len(list(tmp_path.iterdir())) == 1


@pytest.fixture
def _full_disk() -> Iterator[None]:
    """Files cannot grow beyond 2,000 bytes: the system refuses the write, as it does on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("_full_disk")
def test_a_full_disk_is_a_clear_error_and_the_last_good_one_stays(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(1, {"step": 1})
    with pytest.raises(
        CheckpointError, match=r"cannot write .*; 0*1-.* is whole: make room and start the same command"
    ):
        checkpoints.write(2, state(2))
    found, damaged = checkpoints.newest(CPU)
    assert found == {"step": 1}
    assert damaged == []
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.usefixtures("_full_disk")
def test_metrics_on_a_full_disk_are_a_clear_error_and_the_lines_before_stay(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", Settings()) as folder:
        folder.log({"step": 1})
        with pytest.raises(CheckpointError, match=r"cannot write .*metrics.jsonl: .*; make room and start the same"):
            folder.log({"step": 2, "long": "x" * 3000})
        assert folder.metrics() == [{"step": 1}]


@pytest.mark.usefixtures("_full_disk")
def test_events_on_a_full_disk_are_a_clear_error(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    events = Events(tmp_path / "events", 0)
    many = {f"number {index}": 1.0 for index in range(200)}
    with pytest.raises(CheckpointError, match=r"cannot write .*tfevents.*: .*; make room and start the same command"):
        events.write({"event": "epoch", "step": 1, **many})


@pytest.mark.usefixtures("_full_disk")
@pytest.mark.parametrize("switched", [True, False])
def test_a_model_that_finds_no_room_at_the_end_of_a_run_says_how_to_go_on(tmp_path: Path, switched: bool) -> None:
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
    if switched:
        pcn.compress_(model, [torch.randn(200, 100)], pcn.PCNConfig(rank=20))
    with RunFolder(tmp_path / "run", Settings()) as folder:
        with pytest.raises(CheckpointError, match=r"cannot write .*model: .*; make room and start the same command"):
            folder.write_model(model)
        assert not [each for each in tmp_path.rglob("*") if each.is_file() and each.name != ".lock"]


def test_what_a_killed_process_was_writing_into_the_folder_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".model.og6s5j0i" / "new").mkdir(parents=True)
    (tmp_path / "model").mkdir()
    ours = [".11025-report.html", ".7-result.json", "model/.9-model.safetensors", ".model.og6s5j0i/new/plan.json"]
    others = [".7-notes.txt", ".note", "notes.html", "model/model.safetensors"]
    for name in ours + others:
        (tmp_path / name).write_text("half of")
    with RunFolder(tmp_path, Settings()):
        left = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()}
    assert left == {*others, ".lock"}
    assert not (tmp_path / ".model.og6s5j0i").exists()


def test_one_folder_one_process(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", Settings()), pytest.raises(CheckpointError, match="another process is writing"):
        RunFolder(tmp_path / "run", Settings())
    RunFolder(tmp_path / "run", Settings()).close()


def test_other_settings_need_another_folder(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", Settings(epochs=4)).close()  # never began
    with RunFolder(tmp_path / "run", Settings(epochs=5)) as folder:
        folder.begin()
    with pytest.raises(pcn.ConfigError, match=r"other settings \(epochs was 5, now 6\): choose another folder"):
        RunFolder(tmp_path / "run", Settings(epochs=6))


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", Settings()) as folder:
        folder.begin()
        folder.log({"event": "epoch", "step": 10})
        folder.log({"event": "epoch", "step": 20})
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"event": "epo')
    with RunFolder(tmp_path / "run", Settings()) as folder:
        assert [record["step"] for record in folder.metrics()] == [10, 20]
        folder.forget_after(10)
        assert [record["step"] for record in folder.metrics()] == [10]
        folder.log({"event": "ready", "step": 10})  # after the checkpoint, and again when the run goes on
        folder.forget_after(10)
        assert [record["event"] for record in folder.metrics()] == ["epoch"]


def test_a_run_that_begins_again_forgets_its_switch_before_any_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    settings = Settings(model="small_network:build", batch=64, epochs=1, switch_at="0", rank="0.25")

    def start(stepped: Callable[[], None]) -> None:
        with RunFolder(tmp_path / "run", settings) as folder:
            data = load_data(settings, torch.device("cpu"), torch.float32)
            Trainer(settings, data, folder, stepped=stepped).run()

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        start(stop)
    start(lambda: None)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["switch", "epoch"]


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot make the run's folder"):
        RunFolder(tmp_path / "file" / "run", Settings())


def test_a_folder_that_cannot_be_written_into_says_so(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(CheckpointError, match=r"cannot write into the run's folder .*: Is a directory; mend that"):
        RunFolder(tmp_path, Settings())


def test_room_is_asked_for_only_where_it_is_missing(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write .*: File exists; mend that and start the same command"):
        Checkpoints(tmp_path / "checkpoints").write(1, {"step": 1})
