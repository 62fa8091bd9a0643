"""A network's calls can be made again from their sizes alone, for any number of samples."""

from __future__ import annotations

from pathlib import Path

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
