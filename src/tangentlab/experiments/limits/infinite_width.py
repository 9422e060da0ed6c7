"""Kernels of finite networks against their limit at infinite width, and what each of them predicts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.limits._measures import cut_short, log_slope, share_right
from tangentlab.figures.style import GRAY, PALETTE, band, label, legend_below, panels
from tangentlab.kernels import predict, ridge_dual, wide_mlp_kernels
from tangentlab.metrics import NTK
from tangentlab.models import WideMLP


@experiment
class InfiniteWidth(Experiment):
    """Tangent kernels of ReLU networks of growing width on MNIST, next to the closed form."""

    name = "infinite-width"
    title = "Wide networks have the kernel of infinite width"
    question = (
        "In the kernel regime a network is its tangent kernel, and at infinite width that kernel is known in closed "
        "form. How fast do kernels of finite networks come to it, and how do predictions by the kernels compare "
        "with those of a trained network?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Srebro, Kernel Regime"
    claims = claims_of("infinite-width")
    scales = {
        "smoke": {"data": "digits", "train": 40, "test": 30, "widths": (16, 64), "steps": 20},
        "paper": {},
    }
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 5, "paper": 5}
    notes = {"desk": "beside the slides, which speak of the kernel regime without infinite width: all claims are ours"}

    data: str = "mnist"
    train: int = 200
    test: int = 500
    widths: tuple[int, ...] = (64, 256, 1024, 4096)
    depth: int = 3
    steps: int = 300
    rate: float = 0.5

    def cost(self) -> Cost:
        """One step per width."""
        return Cost(len(self.widths), 20.0, 1000)

    def run(self, lab: Lab) -> None:
        """Distances of kernels, and accuracies on held-out digits by regression and by training."""
        images = lab.dataset(self.data).first(self.train + self.test)
        inputs = images.inputs.flatten(1)
        inputs = math.sqrt(inputs.shape[1]) * inputs / inputs.norm(dim=1, keepdim=True)
        labels = torch.eye(10)[images.targets] - 0.1
        kernels = wide_mlp_kernels(inputs, depth=self.depth)
        unseen = images.targets[self.train :]
        limits = {name: self.fitted(getattr(kernels, name), labels) for name in ("tangent", "process")}
        lab.log("limits", **{name: share_right(outputs, unseen) for name, outputs in limits.items()})
        for width in lab.loop(list(self.widths), "widths"):
            with lab.seeded("model", width):
                model = WideMLP([inputs.shape[1], *[width] * (self.depth - 1), 10])
            kernel = NTK(model, inputs, outputs=0).matrix().double()
            distance = float((kernel - kernels.tangent).norm() / kernels.tangent.norm())
            trained = self.trained(model, inputs, labels)
            lab.log(
                "widths",
                width=width,
                distance=distance,
                kernel=share_right(self.fitted(kernel, labels), unseen),
                network=share_right(trained[self.train :], unseen),
                fitted=share_right(trained[: self.train], images.targets[: self.train]),
            )

    def fitted(self, kernel: Tensor, labels: Tensor) -> Tensor:
        """Predictions on the held-out part by regression without a penalty."""
        n = self.train
        return predict(kernel[n:, :n], ridge_dual(kernel[:n, :n], labels[:n].double(), 0.0))

    def trained(self, model: WideMLP, inputs: Tensor, labels: Tensor) -> Tensor:
        """Outputs of the network on all inputs after full-batch gradient descent on the squared loss of the first part."""
        x, y = inputs[: self.train], labels[: self.train]
        optimizer = torch.optim.SGD(model.parameters(), lr=self.rate, momentum=0.9)
        with torch.no_grad():
            start = model(inputs)
        for _ in range(self.steps):
            optimizer.zero_grad()
            (model(x) - start[: self.train] - y).square().mean(0).sum().div(2).backward()
            optimizer.step()
        with torch.no_grad():
            return model(inputs) - start

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """The rate by least squares on logarithms, and differences of accuracies at the largest width."""
        rows, limits = results.table("widths", seed=seed).rows, results.table("limits", seed=seed).rows
        if len(rows) < len(self.widths) or not limits:
            return cut_short(self.claims)
        last = rows[-1]
        return {
            "S4c-W-rate": abs(log_slope(rows, "width", "distance") + 0.5),
            "S4c-W-near": last["distance"],
            "S4c-W-predicts": abs(last["kernel"] - limits[0]["tangent"]),
            "S4c-W-network": abs(last["network"] - limits[0]["tangent"]),
            "S4c-W-fitted": last["fitted"],
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Distance and accuracies over the width."""
        figure, ((left, right),) = panels(2)
        curves = results.curves("widths", "width", "distance")
        band(left, curves, "measured", color=PALETTE[0], marker="o")
        left.plot(
            curves.x, curves.mean[0] * (curves.x / curves.x[0]) ** -0.5, color=GRAY, linestyle=":", label="width^(−1/2)"
        )
        left.set_xscale("log")
        left.set_yscale("log")
        label(left, "width", "|K − K∞| / |K∞|", f"{self.train + self.test} digits, depth {self.depth}")
        for name, words, color in (("network", "trained network", PALETTE[1]), ("kernel", "its kernel", PALETTE[0])):
            band(right, results.curves("widths", "width", name), words, color=color, marker="o")
        limits = results.table("limits")
        for name, words, style in (("tangent", "NTK, infinite width", "--"), ("process", "NNGP, infinite width", ":")):
            right.axhline(float(limits[name].mean()), color=GRAY, linestyle=style, label=words)
        right.set_xscale("log")
        label(right, "width", "test accuracy", f"{self.train} for training")
        legend_below(left)
        legend_below(right)
        yield Picture(
            "width",
            figure,
            "Left: relative distance of the tangent kernel of a ReLU network at its start from that of infinite width. Right: "
            "accuracy on held-out digits of kernel regression with either, of the Gaussian process, and of the network trained "
            "by gradient descent on the squared loss. Mean over seeds, all seeds as a band.",
        )
