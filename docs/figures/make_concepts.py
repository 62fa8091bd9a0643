"""The figures of docs/concepts.md, from one small network on scikit-learn's digits; ten seconds on one CPU thread.

python docs/figures/make_concepts.py   (needs scikit-learn and matplotlib; also writes the numbers that the page names)
"""

import copy
import json
from pathlib import Path

import matplotlib
import torch
from sklearn.datasets import load_digits
from torch import nn

import pcn

matplotlib.use("svg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
WIDTH, EPOCHS, SWITCH, KEEP = 256, 30, 5, 64
RULE = pcn.ExplainedVariance(0.95)
BLUE, ORANGE, GREY = "#0b6e99", "#d9730d", "#9aa1a9"
LAYERS = {"2": "what hidden layer 2 reads", "4": "what the output layer reads"}


def main() -> None:
    torch.set_num_threads(1)
    plt.rcParams.update(STYLE)
    train, test = digits()
    model, optimizer = network()
    parent = Run(model, optimizer, train, test)
    parent.go_on_to(SWITCH)
    stats = parent.look()
    share = draw_two_units(model[:2](train[0]).detach())
    draw_spectra(stats)
    draw_scores(stats)

    small = Run(*copy.deepcopy((model, optimizer)), train, test, epoch=SWITCH)
    plan = pcn.make_plan(small.model, stats, pcn.PCNConfig(rank=RULE))
    plan.apply_(small.model, stats, optimizer=small.optimizer)
    small.note()
    small.go_on_to(EPOCHS)
    parent.go_on_to(EPOCHS)
    draw_epochs(parent)
    draw_switch(parent.accuracies, small.accuracies)
    numbers = {
        "share of two units' variance in one direction": share,
        "directions before training": parent.directions[0],
        "directions at the switch": parent.directions[SWITCH],
        "directions at the end": parent.directions[EPOCHS],
        "trained parameters, parent": parent.trained(),
        "trained parameters, PCN": small.trained(),
        "stored in bases and means": sum(layer.basis_size for layer in plan.transformed),
        "test accuracy before the switch": round(parent.accuracies[SWITCH], 1),
        "test accuracy right after the switch": round(small.accuracies[SWITCH], 1),
        "test accuracy, parent": round(parent.accuracies[EPOCHS], 1),
        "test accuracy, PCN": round(small.accuracies[EPOCHS], 1),
    }
    (HERE / "concepts.json").write_text(json.dumps(numbers, indent=2) + "\n")
    print(json.dumps(numbers, indent=2))


class Run:
    """A network in training; knows its test accuracy and its layers' effective dimensions after every epoch."""

    def __init__(self, model, optimizer, train, test, epoch: int = 0) -> None:
        self.model, self.optimizer, self.train, self.test, self.epoch = model, optimizer, train, test, epoch
        self.accuracies: dict[int, float] = {}
        self.directions: dict[int, dict[str, int]] = {}
        if epoch == 0:
            self.note()

    def go_on_to(self, last: int) -> None:
        inputs, labels = self.train
        while self.epoch < last:
            self.epoch += 1
            order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(self.epoch))
            for part in order.split(64):
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(inputs[part]), labels[part]).backward()
                self.optimizer.step()
            self.note()

    @torch.no_grad()
    def note(self) -> None:
        inputs, labels = self.test
        self.accuracies[self.epoch] = 100 * (self.model(inputs).argmax(1) == labels).float().mean().item()
        if pcn.get_plan(self.model) is None:
            stats = self.look()
            self.directions[self.epoch] = {name: RULE.rank(stats.spectrum(name)) for name in LAYERS}

    def look(self) -> pcn.Statistics:
        return pcn.analyze(self.model, [self.train[0]])

    def trained(self) -> int:
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)


def digits() -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    pixels, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    return tuple((pixels[part].float() / 16, labels[part]) for part in (order[:1300], order[1300:]))


def network() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
    model = nn.Sequential(*layers)
    return model, torch.optim.Adam(model.parameters(), lr=2e-3)


def draw_two_units(hidden: torch.Tensor) -> str:
    """Two units that rise and fall together, their mean, and the two directions; returns the first one's share."""
    lively = (hidden > 0).float().mean(0) > 0.9
    units = lively.nonzero().flatten()
    correlation = torch.corrcoef(hidden[:, units].T).fill_diagonal_(0)
    first, second = divmod(int(correlation.argmax()), len(units))
    points = hidden[:, units[[first, second]]]
    mean, (values, vectors) = points.mean(0), torch.linalg.eigh(torch.cov(points.T))
    figure, axes = plt.subplots(figsize=(4.6, 3.6))
    axes.scatter(*points.T, s=5, color=GREY, linewidths=0)
    for rank, color in ((1, BLUE), (0, ORANGE)):
        direction = vectors[:, rank] * vectors[:, rank].sum().sign()
        tip = mean + 2 * values[rank].sqrt() * direction
        axes.annotate(
            "", tip, mean, arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2, "shrinkA": 0, "shrinkB": 0}
        )
        share = values[rank] / values.sum()
        offset = (8, -4) if rank else (4, -10)
        axes.annotate(f"{share:.0%}", tip, offset, textcoords="offset points", color=color, weight="bold")
    axes.plot(*mean, "o", color="black", ms=5)
    axes.set(xlabel="activation of one hidden unit", ylabel="of another one", aspect="equal")
    save(figure, "two_units")
    return f"{values[1] / values.sum():.0%}"


def draw_spectra(stats) -> None:
    """The variance along every direction, and where the kept ones end."""
    figure, panels = plt.subplots(1, 2, figsize=(7.6, 3), sharey=True)
    for axes, (name, title) in zip(panels, LAYERS.items(), strict=True):
        spectrum = stats.spectrum(name)
        values, kept = spectrum.leading(spectrum.width)[0].flatten(), RULE.rank(spectrum)
        values = values.clamp(min=1e-9)
        numbers = range(1, len(values) + 1)
        axes.fill_between(numbers[:kept], values[:kept], 1e-9, color=BLUE, alpha=0.2, lw=0)
        axes.plot(numbers, values, color=GREY, lw=1.5)
        axes.plot(numbers[:kept], values[:kept], color=BLUE, lw=2.5)
        axes.axvline(kept, color=BLUE, lw=1, ls=":")
        axes.annotate(
            f"{kept} of {len(values)} directions\nhold 95% of the variance", (kept + 14, 5), color=BLUE, va="top"
        )
        axes.set(yscale="log", title=title, xlabel="direction", ylim=(1e-7, 10), xlim=(0, len(values)))
    panels[0].set_ylabel("variance")
    save(figure, "spectrum")


def draw_epochs(run: Run) -> None:
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(5.6, 4.2), sharex=True)
    for name, color in zip(LAYERS, (BLUE, ORANGE), strict=True):
        counts = [found[name] for found in run.directions.values()]
        top.plot(run.directions.keys(), counts, color=color, lw=2)
        place = {"xytext": (0, 6), "textcoords": "offset points", "ha": "right"}
        top.annotate(LAYERS[name], (EPOCHS, counts[-1]), color=color, **place)
    top.set(ylabel="directions for 95%", ylim=(0, None))
    bottom.plot(run.accuracies.keys(), run.accuracies.values(), color="black", lw=2)
    bottom.set(xlabel="epoch", ylabel="test accuracy (%)", xlim=(0, EPOCHS))
    for axes in (top, bottom):
        axes.axvline(SWITCH, color=GREY, lw=1, ls=":")
    save(figure, "epochs")


def draw_scores(stats) -> None:
    """How much the basis of the output layer uses every unit before it."""
    rank = RULE.rank(stats.spectrum("4"))
    scores = stats.basis("4", rank).abs().sum(1).sort(descending=True).values
    figure, axes = plt.subplots(figsize=(5.6, 2.6))
    axes.bar(range(KEEP), scores[:KEEP], width=1, color=BLUE)
    axes.bar(range(KEEP, len(scores)), scores[KEEP:], width=1, color=GREY)
    axes.annotate(f"keep_outputs={KEEP}: these stay", (KEEP + 4, scores[0]), color=BLUE, va="top")
    axes.set(xlabel="units of hidden layer 2, by score", ylabel="L1 norm of its row", xlim=(-1, len(scores)))
    save(figure, "scores")


def draw_switch(parent, small) -> None:
    figure, axes = plt.subplots(figsize=(5.6, 3))
    axes.plot(parent.keys(), parent.values(), color=GREY, lw=2)
    axes.plot(small.keys(), small.values(), color=BLUE, lw=2)
    axes.axvline(SWITCH, color=BLUE, lw=1, ls=":")
    low = min(value for epoch, value in {**parent, **small}.items() if epoch >= 2) - 1
    axes.annotate("the switch", (SWITCH + 0.3, low + 0.4), color=BLUE)
    axes.annotate(
        "parent", (EPOCHS, parent[EPOCHS]), (6, 4), textcoords="offset points", color=GREY, annotation_clip=False
    )
    axes.annotate(
        "PCN", (EPOCHS, small[EPOCHS]), (6, -10), textcoords="offset points", color=BLUE, annotation_clip=False
    )
    axes.set(xlabel="epoch", ylabel="test accuracy (%)", xlim=(1, EPOCHS), ylim=(low, 100))
    save(figure, "switch")


def save(figure, name: str) -> None:
    figure.savefig(HERE / f"concepts_{name}.svg", metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


STYLE = {
    "svg.hashsalt": "pcn",
    "svg.fonttype": "path",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
}

if __name__ == "__main__":
    main()
