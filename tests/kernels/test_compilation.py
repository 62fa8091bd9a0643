"""The kernels compile for a GPU where there is none: what the interpreter lets through may still be no Triton."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from pcn.kernels import moments_kernel, norm_backward_kernel, norm_kernel  # noqa: E402

HOPPER = 90
NUMBERS = {"count": "i64", "each": "i64", "tiles": "i64", "parts": "i32", "share": "fp32"}
NORM = {"weight", "bias", "mean", "inverse_std", "centre"}
SINGLE = NORM | {"held", "variance", "plain", "weighted", "d_bias", "d_weight"}
SIZES = {"width": 64, "rank": 16, "ROWS": 32, "COLUMNS": 64, "DIRECTIONS": 16, "STAGES": 3, "PRECISION": "ieee"}
KERNELS = {
    "forward": (norm_kernel._forward, {"CENTRE": True, "EMIT": True}),
    "forward in parts": (norm_kernel._forward, {"width": 300, "CENTRE": False, "EMIT": False}),
    "sums": (norm_backward_kernel._sums, {"MASK": 2, "WRITE": True}),
    "gradients": (norm_backward_kernel._gradients, {}),
    "gradients, high rank": (norm_backward_kernel._gradients, {"rank": 40}),
    "sums in all": (norm_backward_kernel._add_up, {"ADDED": 128, "COLUMNS": 16}),
    "moments": (moments_kernel._sums, {"ADD": True}),
    "moments in all": (moments_kernel._merge, {"MERGED": 128, "COLUMNS": 16}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_compiles_and_spills_no_registers(name: str, tmp_path: Path) -> None:
    kernel, given = KERNELS[name]
    constants: dict[str, Any] = {}
    signature: dict[str, str] = {}
    for parameter in kernel.params:
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = given.get(parameter.name, SIZES.get(parameter.name, True))
        else:
            pointer = "*fp32" if parameter.name in SINGLE else "*bf16"
            signature[parameter.name] = NUMBERS.get(parameter.name, pointer)
    aligned = [["tt.divisibility", 16]]  # as tensors are
    attributes = {(place,): aligned for place, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    target = triton.backends.compiler.GPUTarget("cuda", HOPPER, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": 4, "num_stages": 3})
    assert resources(compiled.asm["cubin"], tmp_path)["STACK"] == 0


def resources(cubin: bytes, folder: Path) -> dict[str, int]:
    """What a compiled kernel needs, as the tool beside Triton's assembler says."""
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    said = subprocess.run([tool, "--dump-resource-usage", file], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"([A-Z]+):(\d+)", said)}
