"""The kernels compile for a GPU where there is none: what the interpreter lets through may still be no Triton."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from pcn.kernels import (  # noqa: E402
    conv_kernel,
    conv_shift_kernel,
    conv_weight_kernel,
    moments_kernel,
    norm_gradients_kernel,
    norm_kernel,
    norm_sums_kernel,
)
from pcn.kernels.conv_reference import Geometry  # noqa: E402

HOPPER = 90
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
NUMBERS = {"count": "i64", "each": "i64", "tiles": "i64", "parts": "i32", "share": "fp32"}
NORM = {"weight", "bias", "mean", "inverse_std", "centre"}
SINGLE = NORM | {"held", "variance", "plain", "weighted", "d_bias", "d_weight"}
TILE = {"width": 64, "rank": 16, "ROWS": 32, "COLUMNS": 64, "DIRECTIONS": 16, "STAGES": 3, "DESCRIBED": False}
SIZES = TILE | {"PRECISION": "ieee"}
COPIED = {"z": "tensordesc<bf16[64, 64]>", "ROWS": 64, "COLUMNS": 64, "DESCRIBED": True}
IMAGES = Geometry(32, 32, channels=16, filters=64, kernel_height=3, kernel_width=3, stride=1, padding=1)
TILES = {"ROWS": 64, "DEPTH": 128, "REST": 16, "BANDS": 4, "STAGES": 2, "NEAR": False, "EVEN": True}
CONV = IMAGES._asdict() | {"out_height": 32, "out_width": 32, "weight": "*bf16"} | TILES
PARTS = {"width": 300, "CENTRE": False, "EMIT": False, "TURNED": False, "EVEN": False}
KERNELS = {
    "forward": (norm_kernel.pcn_norm, {"CENTRE": True, "EMIT": True, "TURNED": False, "FLAT": False}),
    "forward in parts": (norm_kernel.pcn_norm, PARTS | {"FLAT": False}),
    "forward in parts, one loop": (norm_kernel.pcn_norm, PARTS | {"FLAT": True}),
    "forward, turned": (norm_kernel.pcn_norm, {"CENTRE": True, "EMIT": True, "FLAT": False, "DIRECTIONS": 64}),
    "sums": (norm_sums_kernel.pcn_norm_sums, {"MASK": 2, "WRITE": True, "TURNED": False}),
    "sums, turned": (norm_sums_kernel.pcn_norm_sums, {"MASK": 1, "WRITE": True, "ROWS": 64}),
    "sums of tiles that are copied": (norm_sums_kernel.pcn_norm_sums, {"MASK": 0} | COPIED),
    "sums, some rows missing": (norm_sums_kernel.pcn_norm_sums, {"MASK": 2, "TURNED": False, "EVEN": False}),
    "gradients": (norm_gradients_kernel.pcn_norm_gradients, {"TURNED": False}),
    "gradients, high rank": (norm_gradients_kernel.pcn_norm_gradients, {"rank": 40, "TURNED": False}),
    "gradients, some rows missing": (norm_gradients_kernel.pcn_norm_gradients, {"TURNED": False, "EVEN": False}),
    "gradients, turned": (norm_gradients_kernel.pcn_norm_gradients, {"rank": 40, "ROWS": 64}),
    "gradients of tiles that are copied": (norm_gradients_kernel.pcn_norm_gradients, COPIED),
    "sums in all": (norm_sums_kernel.pcn_norm_sums_merge, {"ADDED": 512, "COLUMNS": 8}),
    "moments": (moments_kernel.pcn_moments, {"ADD": True}),
    "moments, some rows missing": (moments_kernel.pcn_moments, {"ADD": True, "EVEN": False}),
    "moments in all": (moments_kernel.pcn_moments_merge, {"MERGED": 512, "COLUMNS": 8}),
    "convolution": (conv_kernel.pcn_conv, CONV | {"REVERSED": False}),
    "convolution by way of L1": (conv_kernel.pcn_conv, CONV | {"REVERSED": False, "EVEN": False, "NEAR": True}),
    "convolution back": (
        conv_kernel.pcn_conv,
        CONV | {"channels": 64, "filters": 16, "MOMENTS": False, "KEPT": False, "COLUMNS": 16, "DEPTH": 64},
    ),
    "convolution back, shifted": (
        conv_shift_kernel.pcn_conv_shift,
        CONV | {"channels": 64, "filters": 16, "COLUMNS": 16, "DEPTH": 64, "ROWS": 128, "STAGES": 3},
    ),
    "convolution's weight": (conv_weight_kernel.pcn_conv_weight, CONV | {"CHUNKS": 1}),
    "convolution's weight in groups": (
        conv_weight_kernel.pcn_conv_weight,
        CONV | {"channels": 64, "filters": 256, "DEPTH": 64, "CHUNKS": 3, "REST": 0},
    ),
    "convolution's weight in all": (
        conv_weight_kernel.pcn_conv_weight_sum,
        {"ADDED": 64, "COLUMNS": 128, "width": 9216},
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_compiles_and_spills_no_registers(name: str, tmp_path: Path) -> None:
    kernel, given = KERNELS[name]
    compiled = compile_for_hopper(kernel, given)
    assert resources(compiled.asm["cubin"], tmp_path)["STACK"] == 0


def test_patches_are_copied_to_the_chip_while_others_are_multiplied() -> None:
    """By asynchronous copies: of 16 bytes, or of 8, which go by way of L1."""
    for name, copies in {"convolution": "cp.async.cg", "convolution by way of L1": "cp.async.ca"}.items():
        assembly = compile_for_hopper(*KERNELS[name]).asm["ptx"]
        assert copies in assembly
        assert "wgmma" in assembly


def test_rows_that_are_the_right_factor_leave_room_for_more_threads(tmp_path: Path) -> None:
    sizes = {"width": 128, "rank": 32, "ROWS": 32, "COLUMNS": 128, "CENTRE": False, "FLAT": False}
    left, right = (
        registers(sizes | more, tmp_path)
        for more in ({"TURNED": False, "DIRECTIONS": 32}, {"TURNED": True, "DIRECTIONS": 64})
    )
    assert right < 0.6 * left


def test_one_loop_in_place_of_two_leaves_room_too(tmp_path: Path) -> None:
    sizes = {"width": 512, "rank": 128, "ROWS": 64, "DIRECTIONS": 128, "CENTRE": False, "TURNED": False}
    two, one = (registers(sizes | {"FLAT": flat}, tmp_path) for flat in (False, True))
    assert one < 0.8 * two


def test_an_element_takes_few_instructions(tmp_path: Path) -> None:
    """One multiplies and adds, one is for ReLU, rounded two at a time, one for what was read two at a time."""
    sizes = {"width": 256, "rank": 64, "ROWS": 32, "COLUMNS": 256, "DIRECTIONS": 64, "STAGES": 2}
    flags = {"CENTRE": False, "EMIT": False, "ADDED": False, "FLAT": False}
    loop = loop_of(compile_for_hopper(norm_kernel.pcn_norm, sizes | flags).asm["cubin"], tmp_path)
    assert len(loop) <= 5 * 32 * 256 // (4 * 32)
    assert not any("FADD" in line for line in loop)  # the mean is in the shift


BACK = {"width": 256, "rank": 64, "ROWS": 64, "DIRECTIONS": 64, "DIRECT": False, "MASK": 0, "WRITE": False}
PASSES_BACK = {"sums": norm_sums_kernel.pcn_norm_sums, "gradients": norm_gradients_kernel.pcn_norm_gradients}


@pytest.mark.parametrize(("name", "most"), [("sums", 11), ("gradients", 12.5)])
def test_an_element_takes_few_instructions_on_the_way_back(name: str, most: float, tmp_path: Path) -> None:
    """With 64 directions that is what takes the time, more than memory."""
    full, some_missing = (
        len(loop_of(compile_for_hopper(PASSES_BACK[name], BACK | {"EVEN": even}).asm["cubin"], tmp_path))
        for even in (True, False)
    )
    elements = 64 * 64 // (4 * 32)  # of a tile, for each thread of four warps
    assert full <= most * elements
    assert full < 0.95 * some_missing  # where every tile is full, nothing is masked


def test_threads_sum_up_on_their_own_until_the_last_tile(tmp_path: Path) -> None:
    for sizes in ({}, {"ROWS": 32, "COLUMNS": 128}, {"rank": 16, "DIRECTIONS": 16}):
        compiled = compile_for_hopper(norm_sums_kernel.pcn_norm_sums, BACK | sizes | {"TURNED": True})
        assert "SHFL" in disassembled(compiled.asm["cubin"], tmp_path)
        assert not any("SHFL" in line for line in loop_of(compiled.asm["cubin"], tmp_path))


@pytest.mark.parametrize("name", PASSES_BACK)
def test_tiles_that_the_copying_engine_brings_are_read_without_waiting(name: str, tmp_path: Path) -> None:
    """Eight rows below one another lie in the same banks of shared memory, unless their order there is another."""
    asynchronous, copied = (compile_for_hopper(PASSES_BACK[name], BACK | sizes) for sizes in ({}, COPIED))
    orders = [order_of_tiles(each.asm["ttgir"]) for each in (asynchronous, copied)]
    assert ["maxPhase = 1" in order for order in orders] == [True, False]
    assert ["swizzlingByteWidth = 128" in order for order in orders] == [False, True]
    for tool, compiled in {"LDGSTS": asynchronous, "UTMALDG": copied}.items():
        assert tool in disassembled(compiled.asm["cubin"], tmp_path)
    registers = [resources(each.asm["cubin"], tmp_path)["REG"] for each in (asynchronous, copied)]
    assert registers[1] <= 1.3 * registers[0]


def order_of_tiles(assembly: str) -> str:
    """How the tiles that threads read themselves lie in shared memory."""
    (name,) = set(re.findall(r"ttg\.local_load .*memdesc<64x64xbf16, #(\w+),", assembly))
    (order,) = re.findall(rf"^#{name} = (.*)$", assembly, re.MULTILINE)
    return str(order)


def loop_of(cubin: bytes, folder: Path) -> list[str]:
    """The instructions of the longest loop of a kernel."""
    labels: dict[str, int] = {}
    instructions: list[str] = []
    longest: list[str] = []
    for line in disassembled(cubin, folder).splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif re.match(r"\s*/\*[0-9a-f]+\*/", line):
            instructions.append(line)
            back = re.search(r"BRA.*`\((\.L_x_\d+)\)", line)
            if back and back[1] in labels:
                longest = max(longest, instructions[labels[back[1]] :], key=len)
    assert longest
    return longest


def disassembled(cubin: bytes, folder: Path) -> str:
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    return subprocess.run([TOOLS / "nvdisasm", "-c", file], capture_output=True, text=True, check=True).stdout


def registers(given: dict[str, Any], folder: Path) -> int:
    """What each thread of the forward pass needs."""
    return resources(compile_for_hopper(norm_kernel.pcn_norm, given).asm["cubin"], folder)["REG"]


def test_no_more_products_are_waited_for_than_the_hardware_counts() -> None:
    for name in ("convolution", "convolution's weight", "convolution's weight in groups"):
        waits = re.findall(r"wgmma\.wait_group\S*\s+(\d+)", compile_for_hopper(*KERNELS[name]).asm["ptx"])
        assert waits
        assert max(map(int, waits)) <= 7


def compile_for_hopper(kernel: Any, given: dict[str, Any]) -> Any:
    constants: dict[str, Any] = {}
    signature: dict[str, str] = {}
    for parameter in kernel.params:
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = given.get(parameter.name, SIZES.get(parameter.name, True))
        else:
            pointer = "*fp32" if parameter.name in SINGLE else "*bf16"
            signature[parameter.name] = NUMBERS.get(parameter.name, given.get(parameter.name, pointer))
    aligned = [["tt.divisibility", 16]]  # as tensors are
    attributes = {(place,): aligned for place, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    target = triton.backends.compiler.GPUTarget("cuda", HOPPER, 32)
    return triton.compile(source, target=target, options={"num_warps": 4, "num_stages": 3})


def resources(cubin: bytes, folder: Path) -> dict[str, int]:
    """What a compiled kernel needs, as the tool beside Triton's assembler says."""
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    said = subprocess.run(
        [TOOLS / "cuobjdump", "--dump-resource-usage", file], capture_output=True, text=True, check=True
    ).stdout
    return {name: int(value) for name, value in re.findall(r"([A-Z]+):(\d+)", said)}
