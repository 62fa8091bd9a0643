"""One training step as a CUDA graph, and what surrounds it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from cifar import Data, Images, Scale
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer

import pcn

WARM_UP_STEPS = 3  # before a capture: libraries load and choose their kernels
MOMENTS = {SGD: ("momentum_buffer",), Adam: ("exp_avg", "exp_avg_sq")}


def pick_device() -> torch.device:
    """Take the GPU where there is one, and let cuDNN measure which of its kernels is fastest."""
    torch.backends.cudnn.benchmark = True
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def compute_dtype(device: torch.device) -> torch.dtype:
    """What is multiplied in: bf16 on a GPU, while weights stay fp32 everywhere."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=compute_dtype(device) == torch.bfloat16)


class Step:
    """One step of training: forward, backward, optimizer. On a GPU it is captured once and replayed."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, images: Tensor, labels: Tensor, *, compiled: bool):
        self.model = model.to(memory_format=torch.channels_last).train()
        self.optimizer = optimizer
        self.images, self.labels = images.clone(), labels.clone()
        self.loss_sum, self.steps = torch.zeros((), device=images.device), 0
        self.loss = self._compiled() if compiled else self._loss
        start_state_(optimizer)
        self.graph = self._capture() if images.is_cuda else None

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.steps += 1
        if self.graph is None:
            self._run()
        else:
            self.graph.replay()

    def take_mean_loss(self) -> float:
        """Return the mean of the losses since the last call."""
        mean = float(self.loss_sum) / self.steps
        self.loss_sum.zero_()
        self.steps = 0
        return mean

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        with autocast(images.device):
            return F.cross_entropy(self.model(images), labels)

    def _compiled(self) -> Callable[[Tensor, Tensor], Tensor]:
        torch.compiler.reset()  # one network's code at a time: after a few, the compiler would fall back to eager
        return torch.compile(self._loss, dynamic=False, fullgraph=True)

    def _run(self) -> None:
        loss = self.loss(self.images, self.labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss_sum += loss.detach()

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Record one step; what the warm-up steps changed is put back."""
        changed = [*self.model.parameters(), *self.model.buffers(), *state_tensors(self.optimizer), self.loss_sum]
        kept = [tensor.detach().clone() for tensor in changed]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP_STEPS):
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        with torch.no_grad():
            torch._foreach_copy_([tensor.detach() for tensor in changed], kept)
        return graph


def switch_(model: nn.Module, data: Data, config: pcn.PCNConfig, optimizer: Optimizer | None = None) -> pcn.Plan:
    """Turn the model into its principal component network; an optimizer that is given goes along with its state."""
    stats = pcn.analyze(model, list(data.analysed()), exclude=config.exclude)
    return pcn.make_plan(model, stats, config).apply_(model, stats, optimizer=optimizer)


def start_state_(optimizer: Optimizer) -> None:
    """Give every parameter all of its state, in the parameter's memory layout; what is missing starts at zero.

    A momentum of zero and none at all lead to the same steps, and a graph needs it to exist.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            for name in MOMENTS[type(optimizer)]:
                start = torch.zeros_like(parameter)
                state[name] = start if state.get(name) is None else start.copy_(state[name])
            if isinstance(optimizer, Adam):
                state.setdefault("step", torch.zeros((), device=parameter.device))


def state_tensors(optimizer: Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def set_learning_rate_(optimizer: Optimizer, rate: float) -> None:
    """Change the rate in place: it is a tensor that the graph reads."""
    for group in optimizer.param_groups:
        group["lr"].fill_(rate)


@torch.no_grad()
def accuracy_percent(model: nn.Module, images: Images, scale: Scale, batch: int = 2500) -> float:
    """Return the share of images that the model classifies right, in eval mode."""
    model.eval()
    right = torch.zeros((), device=images.labels.device)
    with autocast(images.labels.device):
        for pixels, labels in zip(images.pixels.split(batch), images.labels.split(batch), strict=True):
            logits = model(scale(pixels, compute_dtype(pixels.device)))
            right += (logits.argmax(1) == labels).sum()
    model.train()
    return 100 * float(right) / len(images)
