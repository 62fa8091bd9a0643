"""What a convolution takes by its numbers of channels: fewer are not always faster.

    python benchmarks/conv_channels.py                          # the sizes of Conv4 and its PCN, on the GPU
    python benchmarks/conv_channels.py --batch 2 --device cpu --out FILE
    python benchmarks/conv_channels.py --table                  # what was measured, as it stands in docs/performance.md

Forward, gradient of the input and gradient of the weight, each by PyTorch's own kernels in bf16 with channels last, in
microseconds. Results: benchmarks/results/conv_channels.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from markdown_tables import markdown
from pcn.whole_files import write_whole
from step_time_kernels import time_s

RESULT = Path(__file__).parent / "results" / "conv_channels.json"
SIZES = {  # pixels along a side: channels that are read, and that come out
    32: [(3, 40), (3, 64), (24, 56), (24, 64), (32, 64), (40, 50), (40, 56), (40, 64), (48, 64), (56, 64), (64, 64)],
    16: [
        *[(24, 128), (32, 128), (40, 104), (40, 128), (56, 104), (64, 128), (50, 100), (80, 64), (96, 64), (104, 64)],
        *[(104, 104), (128, 64), (128, 128)],
    ],
    8: [(24, 256), (32, 256), (40, 256), (64, 256), (72, 256), (96, 256), (136, 256), (160, 256), (192, 256)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--table", action="store_true", help="print what is in the file")
    given = parser.parse_args()
    if given.table:
        print(table(given.out))
        return
    device = torch.device(given.device)
    torch.backends.cudnn.benchmark = True
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    found: dict[str, Any] = {"device": name, "torch": torch.__version__, "records": []}
    for side, pairs in SIZES.items():
        for channels, filters in pairs:
            times = convolution_us(given.batch, side, channels, filters, device)
            sizes = {"batch": given.batch, "side": side, "channels": channels, "filters": filters}
            found["records"].append(sizes | times)
            print(found["records"][-1], flush=True)
            write_whole(given.out, (json.dumps(found, indent=1) + "\n").encode())


def table(results: Path = RESULT) -> str:
    """What was measured, beside the operations of each."""
    head = "pixels", "channels → filters", "operations (10⁹)", "forward, µs", "gradient of the input", "of the weight"
    rows = []
    for each in json.loads(results.read_text())["records"]:
        side, channels, filters = (each[name] for name in ("side", "channels", "filters"))
        operations = 2 * 9 * each["batch"] * side**2 * channels * filters / 1e9
        times = [f"{each[part]:.0f}" for part in ("forward_us", "input_us", "weight_us")]
        rows.append([f"{side} by {side}", f"{channels} → {filters}", f"{operations:.0f}", *times])
    return markdown(head, rows)


def convolution_us(batch: int, side: int, channels: int, filters: int, device: torch.device) -> dict[str, float]:
    """Microseconds of a convolution of 3 by 3 pixels and of its gradients."""
    x, weight, d_y = (
        made(device, *shape)
        for shape in ((batch, channels, side, side), (filters, channels, 3, 3), (batch, filters, side, side))
    )

    def back(*wanted: bool) -> list[Tensor]:
        geometry = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
        return list(torch.ops.aten.convolution_backward(d_y, x, weight, None, *geometry, [*wanted, False]))

    runs = {
        "forward_us": lambda: torch.conv2d(x, weight, padding=1),
        "input_us": lambda: back(True, False),
        "weight_us": lambda: back(False, True),
    }
    return {part: round(1e6 * time_s(run, device), 1) for part, run in runs.items()}


def made(device: torch.device, *shape: int) -> Tensor:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.randn(shape, device=device).to(dtype).contiguous(memory_format=torch.channels_last)


if __name__ == "__main__":
    main()
