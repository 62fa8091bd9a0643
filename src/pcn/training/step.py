"""One training step, on a GPU captured once and replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer

from pcn.costs.timing import side_stream
from pcn.running.outputs import called_logits
from pcn.training.compiling import Forwards, compile_parts, running

WARM_UP_STEPS = 3  # before a graph is recorded
MOMENTS: dict[type[Optimizer], tuple[str, ...]] = {SGD: ("momentum_buffer",), Adam: ("exp_avg", "exp_avg_sq")}


def training_dtype(device: torch.device) -> torch.dtype:
    """What is multiplied in: bf16 on a GPU, while weights stay fp32 everywhere."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=training_dtype(device) == torch.bfloat16)


class Step:
    """Forward, backward, optimizer; ``compiled`` has ``torch.compile`` make the first two fast."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        inputs: Tensor,
        labels: Tensor,
        *,
        compiled: bool = False,
        graphed: bool = False,
        label_smoothing: float = 0.0,
    ) -> None:
        self.model = model.train()
        self.label_smoothing = label_smoothing
        self.optimizer = optimizer
        self.inputs, self.labels = inputs.clone(), labels.clone()
        self.loss_sum = torch.zeros((), device=inputs.device)
        self.forwards = self._compile() if compiled else {}
        self.graph = None
        if graphed:
            start_state_(optimizer)
            self.graph = self._capture()

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs.copy_(inputs)
        self.labels.copy_(labels)
        if self.graph is None:
            self._run()
        else:
            self.graph.replay()

    def _compile(self) -> Forwards:
        return compile_parts(self.model)

    def _loss(self) -> Tensor:
        with autocast(self.inputs.device):
            logits = called_logits(self.model(self.inputs))
            return F.cross_entropy(logits, self.labels, label_smoothing=self.label_smoothing)

    def _run(self) -> None:
        with running(self.forwards):
            loss = self._loss()
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss_sum += loss.detach()

    def _capture(self) -> torch.cuda.CUDAGraph:
        self._warm_up()
        torch.cuda.reset_peak_memory_stats()  # what libraries try while they choose is no part of a step
        return self._record()

    def _warm_up(self) -> None:
        """Let libraries load and choose their kernels; what these steps changed is put back."""
        changed = [*self.model.parameters(), *self.model.buffers(), *state_tensors(self.optimizer), self.loss_sum]
        side = side_stream(torch.cuda.current_device())
        with put_back(changed):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP_STEPS):
                    self._run()
            torch.cuda.current_stream().wait_stream(side)

    def _record(self) -> torch.cuda.CUDAGraph:
        """A graph of one step, which nothing runs yet."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        return graph


@contextmanager
def put_back(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Give tensors the values back that they had; those that still have them are not written to."""
    kept = [tensor.detach().clone() for tensor in tensors]
    yield
    with torch.no_grad():
        for tensor, before in zip(tensors, kept, strict=True):
            if not torch.equal(tensor, before):
                tensor.copy_(before)


def start_state_(optimizer: Optimizer) -> None:
    """Give every parameter all of its state, in the parameter's memory layout; what is missing starts at zero.

    A momentum of zero and none at all lead to the same steps, and a graph needs it to exist.
    """
    moments = next(names for kind, names in MOMENTS.items() if isinstance(optimizer, kind))
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            for name in moments:
                start = torch.zeros_like(parameter)
                state[name] = start if state.get(name) is None else start.copy_(state[name])
            if isinstance(optimizer, Adam):
                state.setdefault("step", torch.zeros((), device=parameter.device))


def state_tensors(optimizer: Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
