"""What every test starts from."""

import os

# Caps the instruction set that oneDNN may pick for bf16, so that newer machines run the same kernels.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# A pool of compilers for every worker of the suite is more than there are cores, and has stalled for minutes.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest
import torch
from hypothesis import settings

settings.register_profile("pcn", deadline=None)
settings.load_profile("pcn")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)
