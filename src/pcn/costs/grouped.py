"""Products of many matrices in one call, as of experts: their operations and sizes, which PyTorch does not count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

GROUPED = torch.ops.aten._grouped_mm


def grouped_flops(left: Any, right: Any, *rest: Any, **keywords: Any) -> int:
    """Two for every multiply-add; where rows, columns or what is added up is shared out to groups, of all together.

    >>> grouped_flops((10, 4), (3, 4, 5)), grouped_flops((3, 10, 4), (3, 4, 5))
    (400, 1200)
    """
    groups = left[0] if len(left) == len(right) == 3 else 1
    return int(2 * groups * left[-2] * left[-1] * right[-1])


class GroupedSizes(TorchDispatchMode):
    """Answers for such products with tensors of the right sizes: PyTorch has them on some devices and dtypes only."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not GROUPED.default:
            return func(*args, **kwargs or {})
        return _like_product(*args, **kwargs or {})


def _like_product(
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    groups = [len(left)] if left.dim() == right.dim() == 3 else []
    if left.dim() == right.dim() == 2 and offs is not None:  # what is added up is shared out
        groups = [len(offs)]
    return left.new_empty(*groups, left.shape[-2], right.shape[-1], dtype=out_dtype or left.dtype)
