"""The kernels compute what the reference says, for any shape, stride, dtype and mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import interpreted
from kernels.conftest import CUDA, ON_GPU
from pcn.kernels import reference
from pcn.kernels.dispatch import WRITTEN_FROM
from pcn.kernels.launch import CHOICES, Launch
from pcn.kernels.reference import Norm

SHAPES = [(1, 3, 2), (70, 20, 5), (200, 64, 16), (33, 150, 130), (20, 530, 3), (20, 280, 260)]  # rows, width, rank
HALF = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}  # the interpreter truncates to bf16
Run = Callable[..., Any]


def make(shape: tuple[int, int, int], dtype: torch.dtype, mean: float = 1.0) -> Any:
    count, width, rank = shape
    rows = (torch.randn(count, width) * torch.linspace(0.5, 3, width) + mean).to(dtype)
    added = torch.randn(count, width).to(dtype)
    moments, variance = reference.batch_moments(rows)
    norm = Norm(torch.rand(width) + 0.5, torch.randn(width), moments, (variance + 0.1).rsqrt())
    basis = torch.linalg.qr(torch.randn(width, width))[0][:, :rank].to(dtype)
    return rows, added, norm, basis, torch.rand(width)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Equal to the dtype's rounding, measured by the largest number of the tensor."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    scale = float(expected.float().abs().max()) if expected.numel() else 1.0
    torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=HALF[dtype] * max(scale, 1e-3))


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(run: Run, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, added, norm, basis, centre = make(shape, dtype)
    for other, middle in ((None, None), (added, centre)):
        y, projected = run("norm_project", rows, other, *norm, basis, middle, True, True, True)
        expected_y, expected = reference.norm_project(rows, other, norm, basis, middle)
        assert expected is not None
        close(y, expected_y, dtype)
        close(projected, expected, dtype)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("constant", [0.0, 1.0, -30.0])
def test_columns_that_never_change_come_out_as_their_bias(run: Run, constant: float, dtype: torch.dtype) -> None:
    """Their inverse deviation is as large as can be, and with it what rounding does to their mean."""
    rows, bias = torch.full((70, 20), constant).to(dtype), torch.linspace(-1, 1, 20)
    mean, variance = reference.batch_moments(rows)
    norm = Norm(torch.ones(20), bias, mean, (variance + 1e-5).rsqrt())
    y, _ = run("norm_project", rows, None, *norm, None, None, True, True, True)
    torch.testing.assert_close(y.float(), bias.clamp_min(0).expand(70, -1), rtol=0, atol=1e-3 + HALF[dtype] / 3)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backward(run: Run, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, added, norm, basis, _ = make(shape, dtype)
    y, projected = reference.norm_project(rows, added, norm, basis, None)
    assert projected is not None
    d_y, d_projected = torch.randn_like(y), torch.randn_like(projected)
    cases = [((d_projected, None), None, None), ((d_projected, d_y), added, None), ((None, d_y), None, y)]
    for coming, other, out in cases:
        given = (*coming, rows, other, out)
        found = run("norm_project_backward", *given, *norm, basis, True, True)
        expected = reference.norm_project_backward(*given, norm, basis, training=True)
        # A row alone has no gradient: what is left is rounding.
        assert len(rows) > 1 or found[0].abs().max() < 1.0
        for one, another in list(zip(found, expected, strict=True))[0 if len(rows) > 1 else 1 :]:
            close(one, another, dtype)


NETWORK = [
    pytest.param((65536, 256, 64), marks=ON_GPU, id="of a network"),
    pytest.param((8192, 1024, 256), marks=ON_GPU, id="of a wide network"),
]


WIDE = pytest.param((20, 300, 20), marks=pytest.mark.slow, id="in parts")


@pytest.mark.parametrize("shape", [WIDE, (70, 40, 5), (40, 150, 140), *NETWORK])
def test_every_launch_computes_the_same(call: Run, shape: tuple[int, int, int]) -> None:
    dtype = torch.bfloat16
    rows, added, norm, basis, _ = make(shape, dtype)
    expected_y, expected = reference.norm_project(rows, added, norm, basis, None)
    assert expected is not None
    found = call(interpreted.every_launch, "norm_project", rows, added, *norm, basis, None, True, True, True)
    alone = call(interpreted.every_launch, "norm_project", rows, None, *norm, None, None, True, True, True)
    from pcn.kernels.norm_kernel import MORE_OR_LESS, _candidates

    launches, spread = _candidates(*shape[1:], added=True), len(MORE_OR_LESS) * CUDA
    assert any(launch.turned for launch in launches) == (shape[2] <= 128)
    assert any(launch.flat for launch in launches) == (shape[1] > 128)
    assert (len(found), len(alone)) == (len(launches) + spread, 8 + spread)
    for y, projected in found:
        close(y, expected_y, dtype)
        close(projected, expected, dtype)
    for y, _ in alone:
        close(y, reference.norm_project(rows, None, norm, None, None)[0], dtype)
    for mean, variance in call(interpreted.every_launch, "batch_moments", rows):
        close(mean, reference.batch_moments(rows)[0], torch.float32)
        close(variance, reference.batch_moments(rows)[1], torch.float32)
    from pcn.kernels.norm_sums_kernel import _launches
    from pcn.kernels.tiles import describable

    assert any(launch.described for launch in _launches(*shape[1:], describable(rows))) == (shape[1] % 8 == 0)
    d_y, d_projected = torch.randn_like(rows), torch.randn_like(expected)
    cases = [
        ((d_projected, d_y), expected_y, basis),
        ((d_projected, None), None, basis),
        ((None, d_y), expected_y, None),
    ]
    for coming, y, directions in cases:
        given = rows, None, y, norm, directions
        best = reference.norm_project_backward(*coming, *given, relu=True, training=True)
        every = call(
            interpreted.every_launch, "norm_project_backward", *coming, *given[:3], *norm, directions, True, True
        )
        assert len(every) > 5
        for gradients in every:
            for one, another in zip(gradients, best, strict=True):
                close(one, another, dtype)


def test_rows_that_begin_anywhere_are_not_left_to_the_engine_that_copies_tiles() -> None:
    pytest.importorskip("triton")
    from pcn.kernels.norm_gradient_of_y import turned
    from pcn.kernels.tiles import describable

    for able in (True, False):
        assert any(launch.described for launch in turned(64, 16, able)) == able
        assert not turned(64, 0, able)
    rows = torch.zeros(10 * 64 + 8, dtype=torch.bfloat16)
    begin = -rows.data_ptr() % 16 // 2
    there, away = (rows[at : at + 640].view(10, 64) for at in (begin, begin + 1))
    assert describable(there)
    assert not describable(away)
    assert not describable(there.float())


@pytest.mark.parametrize("shape", [(20, 260, 256), NETWORK[1]])
def test_every_launch_of_a_gradient_that_is_written_computes_the_same(call: Run, shape: tuple[int, int, int]) -> None:
    assert shape[2] >= WRITTEN_FROM
    rows, _, norm, basis, _ = make(shape, torch.bfloat16)
    d_projected = torch.randn_like(reference.norm_project(rows, None, norm, basis, None)[1])
    given = d_projected, None, rows, None, None
    best = reference.norm_project_backward(*given, norm, basis, relu=True, training=True)
    for gradients in call(interpreted.every_launch, "norm_project_backward", *given, *norm, basis, True, True):
        for one, another in zip(gradients, best, strict=True):
            close(one, another, torch.bfloat16)


def test_backward_without_relu_and_at_inference(run: Run) -> None:
    rows, added, norm, basis, _ = make((40, 20, 5), torch.float32)
    d_y, d_projected = torch.randn(40, 20), torch.randn(40, 5)
    for relu, training in ((False, True), (True, False), (False, False)):
        for other in (None, added):
            given = (d_projected, d_y, rows, other, None)
            found = run("norm_project_backward", *given, *norm, basis, relu, training)
            expected = reference.norm_project_backward(*given, norm, basis, relu=relu, training=training)
            for one, another in zip(found, expected, strict=True):
                close(one, another, torch.float32)


def test_autograd_reaches_the_kernels(gradients: Run) -> None:
    rows, added, norm, basis, centre = make((30, 20, 5), torch.float32)
    leaves = [tensor.requires_grad_() for tensor in (rows, added, norm.weight, norm.bias)]
    coming = torch.randn(30, 20), torch.randn(30, 5)
    arguments = (*leaves, norm.mean, norm.inverse_std, basis, centre, True, True, True)
    found = gradients("norm_project", arguments, coming)
    expected = reference.norm_project_backward(coming[1], coming[0], rows, added, None, norm, basis, training=True)
    for one, another in zip(found, expected, strict=True):
        close(one, another.detach(), torch.float32)


@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize("shape", [(1, 3), (64, 64), (1000, 5), (130, 150), (513, 16)], ids=str)
def test_moments(run: Run, shape: tuple[int, int], mean: float) -> None:
    """A mean that is ten thousand times the spread costs no more digits than the rows' own rounding has."""
    rows = torch.randn(shape) + mean
    found, variance = run("batch_moments", rows)
    expected, expected_variance = reference.batch_moments(rows.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variance.double(), expected_variance, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_moments_of_numbers_of_any_dtype_are_those_of_the_numbers(run: Run, dtype: torch.dtype) -> None:
    rows = (torch.randn(333, 37) * torch.linspace(0.1, 5, 37) + 3).to(dtype)
    found = run("batch_moments", rows)
    assert {each.dtype for each in found} == {torch.float32}
    expected = [each.float() for each in reference.batch_moments(rows.double())]
    torch.testing.assert_close(list(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(150, 20), (1, 3), (33, 150), (513, 16)], ids=str)
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_moments_of_a_sum(run: Run, shape: tuple[int, int], dtype: torch.dtype) -> None:
    rows, other = torch.randn(shape).to(dtype), (torch.randn(shape) + 5).to(dtype)
    total, mean, variance = run("add_moments", rows, other)
    close(total, rows + other, dtype)
    expected = reference.batch_moments(total)
    torch.testing.assert_close((mean, variance), expected, rtol=1e-5, atol=1e-5)


def test_the_same_rows_give_the_same_bits(run: Run) -> None:
    rows, added, norm, basis, _ = make((700, 20, 5), torch.float32)
    d_projected = torch.randn(700, 5)
    for name, arguments in {
        "batch_moments": (rows,),
        "norm_project_backward": (d_projected, None, rows, added, None, *norm, basis, True, True),
    }.items():
        first, second = run(name, *arguments), run(name, *arguments)
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("shape", [(70, 150, 20), *SHAPES], ids=str)
def test_projection_alone(run: Run, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, _, _, basis, centre = make(shape, dtype, mean=3.0)
    for middle in (centre, None):
        close(run("project", rows, basis, middle), reference.project(rows, basis, middle), dtype)


def test_strides(run: Run) -> None:
    rows, _, norm, basis, _ = make((40, 20, 5), torch.float32)
    expected = reference.norm_project(rows, None, norm, basis, None)
    for spread in (rows.T.contiguous().T, torch.stack([rows, rows], 2)[..., 0], torch.cat([rows, rows], 1)[:, :20]):
        found = run("norm_project", spread, None, *norm, basis.T.contiguous().T, None, True, True, True)
        for one, another in zip(found, expected, strict=True):
            assert another is not None
            close(one, another, torch.float32)
        torch.testing.assert_close(run("batch_moments", spread), reference.batch_moments(rows))


def test_strides_of_a_projection_and_of_a_sum(run: Run) -> None:
    rows, added, _, basis, centre = make((40, 20, 5), torch.float32)
    middle = torch.stack([centre, -centre], 1)[:, 0]
    for spread in (rows.T.contiguous().T, torch.stack([rows, rows], 2)[..., 0], torch.cat([rows, rows], 1)[:, :20]):
        found = run("project", spread, basis.T.contiguous().T, middle)
        close(found, reference.project(rows, basis, centre), torch.float32)
        torch.testing.assert_close(run("add_moments", added, spread), reference.add_moments(added, rows))


def test_strides_of_a_norm(run: Run) -> None:
    rows, added, norm, basis, _ = make((40, 20, 5), torch.float32)
    spread = [torch.stack([each, -each], 1)[:, 0] for each in norm]  # as a parameter that is a part of a larger one
    y, projected = reference.norm_project(rows, added, norm, basis, None)
    assert projected is not None
    found = run("norm_project", rows, added, *spread, basis, None, True, True, True)
    given = projected, None, rows, added, None
    found += run("norm_project_backward", *given, *spread, basis, True, True)
    expected = y, projected, *reference.norm_project_backward(*given, norm, basis, training=True)
    for one, another in zip(found, expected, strict=True):
        close(one, another, torch.float32)


def test_no_rows(run: Run) -> None:
    rows, added, norm, basis, centre = make((1, 20, 5), torch.float32)
    rows, added = rows[:0], added[:0]
    y, projected = run("norm_project", rows, added, *norm, basis, centre, True, True, True)
    assert (y.shape, projected.shape) == ((0, 20), (0, 5))
    found = run("norm_project_backward", projected, y, rows, added, None, *norm, basis, True, True)
    assert [tuple(each.shape) for each in found] == [(0, 20), (0, 20), (20,), (20,)]
    assert not found[2].any()
    assert not found[3].any()
    assert all(each.isnan().all() for each in run("batch_moments", rows))
    total, *moments = run("add_moments", rows, added)
    assert total.shape == (0, 20)
    assert all(each.isnan().all() for each in moments)
    assert run("project", rows, basis, centre).shape == (0, 5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_goes_through_as_in_pytorch(run: Run, value: float) -> None:
    rows, _, norm, basis, _ = make((40, 20, 5), torch.float32)
    rows[7, 3] = value
    y, projected = run("norm_project", rows, None, *norm, basis, None, True, True, True)
    expected, expected_projected = reference.norm_project(rows, None, norm, basis, None)
    torch.testing.assert_close(y, expected, equal_nan=True)
    assert expected_projected is not None
    assert torch.equal(projected.isfinite(), expected_projected.isfinite())


def test_offsets_beyond_32_bits(call: Run) -> None:
    """The last of 2^27 rows of 64 lies beyond what 32 bits count."""
    assert call(interpreted.largest_offset, 2**27 // 16 - 1).tolist() == 2**33 - 1


def test_a_fused_network_trains_and_is_evaluated_through_the_kernels(call: Run) -> None:
    for found, expected in call(interpreted.fused_and_not):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max() + 1e-2))


for_gpu = pytest.mark.parametrize("device", [pytest.param("cuda", marks=ON_GPU)])


@for_gpu
def test_huge_batches(device: str) -> None:
    """More than 2^31 elements: the last rows are as right as the first."""
    from pcn.kernels import add_moments, batch_moments, norm_project, project

    count, width = 2**26 + 40, 64
    rows = torch.zeros(count, width, dtype=torch.bfloat16, device=device)
    rows[-40:] = torch.randn(40, width, device=device)
    ones, zeros = torch.ones(width, device=device), torch.zeros(width, device=device)
    basis = torch.eye(width, device=device, dtype=torch.bfloat16)[:, :16]
    _, projected = norm_project(rows, None, ones, zeros, zeros, ones, basis, None, True, False, True)
    torch.testing.assert_close(projected[-40:], rows[-40:, :16].relu())
    mean, _ = batch_moments(rows)
    torch.testing.assert_close(mean, rows[-40:].float().sum(0) / count, rtol=1e-3, atol=1e-9)
    torch.testing.assert_close(project(rows, basis, ones)[-40:], project(rows[-40:], basis, ones))
    total, mean, _ = add_moments(rows, rows)
    assert torch.equal(total[-40:], 2 * rows[-40:])
    torch.testing.assert_close(mean, 2 * rows[-40:].float().sum(0) / count, rtol=1e-3, atol=1e-9)


@for_gpu
def test_tuning_remembers_the_fastest(device: str, tmp_path: Any) -> None:
    from pcn.kernels import batch_moments, tuning

    rows, path = torch.randn(5000, 48, device=device), tmp_path / "launches.json"
    expected = batch_moments(rows)
    before = dict(CHOICES.found)
    with tuning(path):
        torch.testing.assert_close(batch_moments(rows), expected)
    new = CHOICES.found.keys() - before.keys()
    assert len(new) == 1
    assert path.exists()
    CHOICES.found = before
    with tuning(path):
        assert CHOICES.found.keys() >= new


def test_launches_that_do_not_fit_give_way_to_the_next() -> None:
    errors = pytest.importorskip("triton.runtime.errors")
    from pcn.kernels.launch import Choices

    usual, small, large = Launch(128, 128), Launch(16, 32), Launch(256, 128)
    ran: list[Launch] = []

    def run(launch: Launch) -> int:
        ran.append(launch)
        if launch != small:
            raise errors.OutOfResources(2, 1, "shared memory")
        return launch.rows

    choices = Choices()
    choices.found["a kernel"] = large
    assert [choices.launch("a kernel", 64, [usual, large, small], run) for _ in range(2)] == [16, 16]
    assert ran == [large, usual, small, small]
    with pytest.raises(errors.OutOfResources):
        choices.launch("another", 64, [usual, large], run)


def test_launches_are_remembered_by_their_product_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another dtype of the basis, or another precision, needs other registers."""
    pytest.importorskip("triton")
    from pcn.kernels import norm_backward, norm_kernel, tiles

    keys: list[str] = []
    monkeypatch.setattr(CHOICES, "run", lambda key, *_: keys.append(key))
    rows, _, norm, basis, _ = make((70, 20, 5), torch.float32)
    for precision in ("ieee", "tf32"):
        monkeypatch.setattr(tiles, "precision", lambda _, precision=precision: precision)
        for dtype in (torch.float32, torch.bfloat16):
            narrow = basis.to(dtype)
            _, projected = norm_kernel.norm_project(rows, None, norm, narrow, None, relu=True, emit=False)
            given = projected, None, rows, None, None, norm, narrow
            norm_backward.norm_project_backward(*given, training=True, relu=True)
    assert len(keys) == len(set(keys)) == 12


def test_launches_are_saved_and_loaded(tmp_path: Any) -> None:
    from pcn.kernels.launch import Choices

    kept, fresh = Choices(), Choices()
    kept.found["a kernel"] = Launch(64, 32, 8, 3)
    kept.save(tmp_path / "launches.json")
    assert [path.name for path in tmp_path.iterdir()] == ["launches.json"]
    fresh.load(tmp_path / "launches.json")
    assert fresh.found == kept.found
