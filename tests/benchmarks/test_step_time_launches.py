"""A network's calls can be made again from their sizes alone, for any number of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch


def test_calls_are_noted_once_and_made_again_at_another_size() -> None:
    from pcn.kernels import narrow_conv, norm_project
    from step_time_launches import NOTED, Like, Noted

    images = torch.randn(NOTED, 4, 8, 8).contiguous(memory_format=torch.channels_last)
    weight, norm = torch.randn(8, 4, 3, 3, requires_grad=True), [torch.rand(8) for _ in range(4)]
    with Noted() as noted:
        for _ in range(2):
            y, _, _ = narrow_conv(images, weight, 2, 1)
            y.sum().backward()
            norm_project(torch.randn(NOTED * 16, 8), None, *norm, None, None, True, True, True)
    assert sorted(call.name for call in noted.calls) == ["narrow_conv", "narrow_conv_weight", "norm_project"]
    by_name = {call.name: call.arguments for call in noted.calls}
    assert by_name["narrow_conv"][0] == Like((NOTED, 4, 8, 8), torch.float32, channels_last=True, per_sample=1)
    assert by_name["narrow_conv"][1].per_sample == 0  # a weight has its size for any number of samples
    assert by_name["norm_project"][0].make(2, torch.device("cpu")).shape == (32, 8)
    with Noted() as again:
        for call in noted.calls:
            call.run(NOTED, torch.device("cpu"))
    assert again.calls == noted.calls


def test_the_table_of_kernels_is_noted_like_a_network(tmp_path: Path) -> None:
    from step_time_jobs import Setting
    from step_time_launches import TUNED, note_cases

    (found,) = note_cases(Setting("cpu", True, tmp_path), (8, 4, 16))
    assert {call.name for call in found["calls"]} == set(TUNED)
    for call in found["calls"]:
        call.run(2, torch.device("cpu"))


def test_kernels_can_be_named_whose_launches_are_timed(tmp_path: Path) -> None:
    from step_time_jobs import Setting
    from step_time_launches import wanted

    some = Setting("cpu", True, tmp_path, tuned=("sums", "moments"))
    keys = ["H200 sums 64 16 x", "H200 moments 64 x", "H200 norm_project 64 16 x", "H200 conv_moments 64 x"]
    assert [wanted(some, key) for key in keys] == [True, True, False, False]
    assert all(wanted(Setting("cpu", True, tmp_path), key) for key in keys)


def test_every_call_is_compiled_once_and_timed_for_every_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import step_time
    from step_time_jobs import Setting
    from step_time_launches import PROCESSES, Call, compile_launches, time_launches

    run = step_time.Run(Setting("cpu", True, tmp_path), tmp_path / "results.json", 600.0)
    asked: list[tuple[Any, ...]] = []
    ours, shared, table = Call("project", (1,)), Call("project", (2,)), Call("project", (3,))

    def calls(task: Any, of: Any) -> list[Call]:
        return [table, shared] if isinstance(of, tuple) else [ours, shared]

    monkeypatch.setattr(run, "_calls", calls)
    monkeypatch.setattr(run, "_launches", lambda limit_s, *rest: asked.append(rest))
    run.tune([(step_time.TINY, 8), (step_time.TINY, 2), (step_time.TINY, 32)], run.stages)
    parts = [rest for task, *rest in asked if task is compile_launches]
    assert [part for _, part in parts] == list(range(PROCESSES))
    assert all(len(compiled) == 3 and set(compiled) == {ours, shared, table} for compiled, _ in parts)
    (timed,) = [rest[0] for task, *rest in asked if task is time_launches]
    assert len(timed) == len(set(timed))
    assert set(timed) == {(call, batch) for call in (ours, shared) for batch in (2, 8, 32)} | {(table, 2)}


def test_nothing_is_compiled_or_timed_where_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import step_time
    from step_time_jobs import Setting

    run = step_time.Run(Setting("cpu", True, tmp_path), tmp_path / "results.json", 600.0)
    monkeypatch.setattr(run, "_launches", lambda *rest: pytest.fail("nothing was asked"))
    run.tune([], [])


def test_the_largest_number_of_samples_is_timed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several that make about as many rows it is the one that counts."""
    from step_time_jobs import Setting
    from step_time_launches import Call, time_launches

    ran: list[tuple[Call, int]] = []
    monkeypatch.setattr(Call, "run", lambda call, samples, device: ran.append((call, samples)))
    one, other = Call("project", (1,)), Call("project", (2,))
    list(time_launches(Setting("cpu", True, tmp_path), [(one, 128), (one, 1024), (other, 256)]))
    assert ran == [(one, 1024), (other, 256), (one, 128)]
