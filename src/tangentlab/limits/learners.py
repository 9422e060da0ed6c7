"""Learners side by side: descent in many disguises, the perceptron, elimination and query descent on one family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor, nn

from tangentlab.engine.memory import require_memory
from tangentlab.errors import InputError
from tangentlab.limits.algorithms import Algorithm, Elimination
from tangentlab.limits.cube import Inputs, chosen_inputs
from tangentlab.limits.emulation import add_noise
from tangentlab.limits.functions import Family, Functions
from tangentlab.limits.population import (
    EXACT_LIMIT,
    Loss,
    Population,
    as_parameters,
    noisy_step,
    population_gradient,
    scalar_outputs,
    squared_loss,
)
from tangentlab.limits.queries import Answers, QueryOracle
from tangentlab.metrics import per_example_grads

Predictor = Callable[[Tensor], Tensor]
MakeModel = Callable[[int], nn.Module]


class Learner(ABC):
    """Something that is shown a function and then predicts it."""

    @abstractmethod
    def learn(self, function: Functions, inputs: Inputs, generator: Generator | None = None) -> Predictor:
        """Outputs whose signs are predictions, `(m, n) -> (m,)`."""


def relu_network(width: int = 32) -> MakeModel:
    """Networks with one hidden layer of ReLUs and torch's default initialization, for any n."""
    return lambda n: nn.Sequential(nn.Linear(n, width), nn.ReLU(), nn.Linear(width, 1))


@dataclass(frozen=True)
class Descent(Learner):
    """Gradient descent on a network, with what may be taken from it.

    Attributes:
        model: makes the network for n coordinates, anew for every function; torch's layers draw from its global generator.
        steps: T.
        rate: gamma.
        batch: fresh samples per step; None for the gradient of the whole population.
        noise: sigma, Gaussian noise on every weight after every step.
        sign: steps along the signs of the gradient.
        bits: gradient entries are clipped to `[-reach, reach]` and rounded to multiples of `reach / 2^(bits - 1)`.
        reach: largest entry of a gradient that `bits` keeps.
        coordinates: only so many weights, those with the largest gradients, are updated in each step.
        weight_bits: weights are rounded to multiples of `2^-weight_bits` after every step.
        jitter: Gaussian noise on the initial weights.
        loss: elementwise.
        draws: samples that stand for a population with n above 16.
    """

    model: MakeModel = field(default_factory=relu_network)
    steps: int = 1000
    rate: float = 0.1
    batch: int | None = None
    noise: float = 0.0
    sign: bool = False
    bits: int | None = None
    reach: float = 1.0
    coordinates: int | None = None
    weight_bits: int | None = None
    jitter: float = 0.0
    loss: Loss = squared_loss
    draws: int = 1 << 16

    def learn(self, function: Functions, inputs: Inputs, generator: Generator | None = None) -> Predictor:
        """Train a network of its own."""
        model = self.model(function.n)
        if self.jitter:
            add_noise(model, self.jitter, generator)
        self.train(model, function, inputs, generator)
        return lambda x: scalar_outputs(model, x).detach()

    def train(self, model: nn.Module, function: Functions, inputs: Inputs, generator: Generator | None = None) -> None:
        """Train a given network, in place."""
        whole = _population(function.n, inputs, self.draws, generator) if self.batch is None else None
        labels = None if whole is None else function.labels(whole.inputs)
        for _ in range(self.steps):
            if whole is None:
                seen = Population.of(function.n, inputs, draws=self.batch, generator=generator)
                gradient = population_gradient(model, seen, function.labels(seen.inputs), self.loss)
            else:
                gradient = population_gradient(model, whole, labels, self.loss)
            noisy_step(model, self._told(gradient), self.rate, self.noise, generator)
            if self.weight_bits is not None:
                _round_weights(model, 2.0**-self.weight_bits)

    def _told(self, gradient: list[Tensor]) -> list[Tensor]:
        """What is left of a gradient."""
        if self.sign:
            gradient = [g.sign() for g in gradient]
        if self.bits is not None:
            step = self.reach / 2 ** (self.bits - 1)
            gradient = [(g.clamp(-self.reach, self.reach) / step).round() * step for g in gradient]
        if self.coordinates is not None:
            flat = torch.cat([g.flatten() for g in gradient])
            kept = torch.zeros_like(flat)
            places = flat.abs().topk(min(self.coordinates, len(flat))).indices
            kept[places] = flat[places]
            gradient = [
                part.view_as(g) for part, g in zip(kept.split([g.numel() for g in gradient]), gradient, strict=True)
            ]
        return gradient


@dataclass(frozen=True)
class FromSamples(Learner):
    """An `Algorithm` on fresh samples: elimination by default, the perceptron, decision lists."""

    algorithm: Algorithm = field(default_factory=Elimination)
    samples: int = 100

    def learn(self, function: Functions, inputs: Inputs, generator: Generator | None = None) -> Predictor:
        """Draw the samples once."""
        x = inputs.sample(self.samples, generator)
        y = function.labels(x)
        return lambda new: self.algorithm.predict(x, y, new)


@dataclass(frozen=True)
class QueryDescent(Learner):
    """Gradient descent whose gradients are answers to statistical queries, one query per weight and step.

    The query of a weight is its derivative of the loss over the largest derivative there is at that step, of any weight at
    any input with any label. n up to 16, and networks whose Jacobian over all inputs fits in memory.
    """

    tolerance: float = 0.01
    answers: Answers = "adversarial"
    model: MakeModel = field(default_factory=relu_network)
    steps: int = 200
    rate: float = 0.1
    loss: Loss = squared_loss

    def learn(self, function: Functions, inputs: Inputs, generator: Generator | None = None) -> Predictor:
        """Train by answers alone."""
        model = self.model(function.n)
        population = Population.of(function.n, inputs)
        oracle = QueryOracle(population, function.labels(population.inputs), self.tolerance, self.answers, generator)
        for _ in range(self.steps):
            noisy_step(model, self._asked(model, oracle), self.rate)
        return lambda x: scalar_outputs(model, x).detach()

    def _asked(self, model: nn.Module, oracle: QueryOracle) -> list[Tensor]:
        population = oracle.population
        size = sum(p.numel() for p in model.parameters())
        require_memory(
            16 * size * len(population.inputs), "The Jacobian over all inputs", "Use a smaller n or network."
        )
        slopes = []
        for y in (1.0, -1.0):
            labels = torch.full((len(population.inputs),), y)
            rows = per_example_grads(
                model,
                (as_parameters(model, population.inputs), labels),
                lambda outputs, targets: self.loss(outputs[:, 0], targets),
                function=lambda output, batch: output.view(len(output), 1),
                verify=False,
            )
            slopes.append(rows.flat.double())
        up, down = slopes
        reach = float(max(up.abs().max(), down.abs().max())) or 1.0
        weights = population.weights.double() / reach
        positive = oracle.labels > 0
        truth = weights @ torch.where(positive[:, None], up, down)
        told = oracle.answer(truth, weights @ (up + down) / 2) * reach
        trainable = [p for p in model.parameters() if p.requires_grad]
        pieces = told.split([p.numel() for p in trainable])
        return [piece.view_as(p).to(p) for piece, p in zip(pieces, trainable, strict=True)]


@dataclass(frozen=True)
class Standing:
    """Accuracies of one learner over functions of a family."""

    accuracies: Tensor

    @property
    def mean(self) -> float:
        """Mean over functions."""
        return float(self.accuracies.mean())

    @property
    def standard_error(self) -> float:
        """Of the mean."""
        return float(self.accuracies.std() / len(self.accuracies) ** 0.5) if len(self.accuracies) > 1 else float("nan")


def compare_learners(
    family: Family,
    learners: Mapping[str, Learner],
    *,
    functions: int = 10,
    inputs: Inputs | None = None,
    test_draws: int = 4096,
    seed: int = 0,
) -> dict[str, Standing]:
    """The accuracies of learners on the same random functions of a family.

    Every learner sees every function with random streams of its own, networks included. Accuracies are over all inputs up to
    n = 16, else over `test_draws` new ones; an output of 0 counts 1/2.
    """
    if functions < 1 or not learners:
        raise InputError("A comparison needs at least one function and one learner.")
    chosen = chosen_inputs(family.n, inputs)
    found: dict[str, list[float]] = {name: [] for name in learners}
    for number in range(functions):
        drawn = torch.Generator().manual_seed(seed * 1_000_003 + number)
        function = family.sample(1, drawn)
        test = _population(family.n, chosen, test_draws, drawn)
        truth = function.labels(test.inputs)
        for place, (name, learner) in enumerate(learners.items()):
            own = torch.Generator().manual_seed((seed * 1_000_003 + number) * 101 + place + 1)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(torch.randint(2**31, (), generator=own)))
                predictor = learner.learn(function, chosen, own)
            right = (1 + torch.sign(predictor(test.inputs)).double() * truth) / 2
            found[name].append(float((test.weights.double() * right).sum()))
    return {name: Standing(torch.tensor(values, dtype=torch.float64)) for name, values in found.items()}


def _population(n: int, inputs: Inputs, draws: int, generator: Generator | None) -> Population:
    """Everything up to n = 16, else a sample."""
    return Population.of(n, inputs, draws=None if n <= EXACT_LIMIT else draws, generator=generator)


@torch.no_grad()
def _round_weights(model: nn.Module, step: float) -> None:
    for parameter in model.parameters():
        parameter.copy_((parameter / step).round() * step)
