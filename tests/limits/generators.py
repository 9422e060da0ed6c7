"""Everything in `tangentlab.limits` that draws, as calls with a generator; see tests/test_generators.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from tangentlab import limits
from tangentlab.limits.families import random_subsets
from tangentlab.limits.population import noisy_step

N = 6
INPUTS: dict[str, limits.Inputs] = {
    "Inputs": limits.UniformInputs(N),
    "UniformInputs": limits.UniformInputs(N),
    "ProductInputs": limits.ProductInputs(0.3, N),
    "TableInputs": limits.TableInputs(torch.arange(1, 2**N + 1).double() / sum(range(1, 2**N + 1))),
    "SampledInputs": limits.SampledInputs(N, lambda count, g: limits.UniformInputs(N).sample(count, g)),
}
FAMILIES: dict[str, limits.Family] = {
    "families.Parities": limits.Parities(N),
    "families.Monomials": limits.Monomials(N, 3),
    "families.Juntas": limits.Juntas(N, 3),
    "families.Halfspaces": limits.Halfspaces(N),
    "families.Majorities": limits.Majorities(N, 3),
    "functions.Family": limits.Parities(N),
    "functions.TableFamily": limits.TableFamily(limits.Parities(N).sample(16, Generator().manual_seed(0)).table()),
    "functions.CallableFamily": limits.CallableFamily(N, lambda g: _random_sign(g)),
    "task_families.DNFs": limits.DNFs(N, 3, 2),
    "task_families.DecisionTrees": limits.DecisionTrees(N, 3),
    "task_families.Communities": limits.Communities(3),
    "task_families.Additions": limits.Additions(N),
}


def _random_sign(generator: Generator | None) -> Callable[[Tensor], Tensor]:
    weights = torch.randn(N, generator=generator)
    return lambda x: torch.where(x.float() @ weights > 0, 1, -1)


def network() -> nn.Module:
    """Always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(N, 4), nn.Tanh(), nn.Linear(4, 1))


def weights(model: nn.Module) -> list[Tensor]:
    """Of all parameters."""
    return [parameter.detach() for parameter in model.parameters()]


def trained(learner: limits.Learner, generator: Generator) -> Tensor:
    """What a learner predicts of a parity."""
    parity = limits.Parities(N).sample(1, Generator().manual_seed(3))
    return learner.learn(parity, limits.UniformInputs(N), generator)(limits.all_inputs(N))


def noisily(change: Callable[[nn.Module], None]) -> list[Tensor]:
    """The weights of the network after a change."""
    model = network()
    change(model)
    return weights(model)


def steps_of(learner: limits.Descent, generator: Generator) -> list[Tensor]:
    """The weights after a training."""
    parity = limits.Parities(N).sample(1, Generator().manual_seed(3))
    return noisily(lambda model: learner.train(model, parity, limits.UniformInputs(N), generator))


def sgd(generator: Generator) -> list[Tensor]:
    """With noise on the weights."""
    x = limits.all_inputs(N)[:4].float()
    return noisily(lambda m: limits.train_by_sgd(m, x, torch.ones(4), 0.1, noise=0.1, generator=generator))


def population(generator: Generator | None = None) -> limits.Population:
    """Of a few drawn inputs."""
    return limits.Population.of(N, draws=12, generator=generator)


def answers(generator: Generator) -> Tensor:
    """Of an oracle that adds noise."""
    whole = limits.Population.of(N)
    oracle = limits.QueryOracle(whole, torch.ones(2**N), 0.1, "noise", generator)
    return torch.stack([torch.as_tensor(oracle(lambda x, y: x[:, 0] * y)) for _ in range(3)])


DESCENT: dict[str, Any] = {"model": lambda n: network(), "steps": 3, "batch": 4, "rate": 0.1}
CALLS: dict[str, Callable[[Generator], Any]] = {
    **{f"limits.cube.{name}.sample": lambda g, one=one: one.sample(40, g) for name, one in INPUTS.items()},
    **{f"limits.{name}.sample": lambda g, one=one: one.sample(12, g).table() for name, one in FAMILIES.items()},
    "limits.families.random_subsets": lambda g: random_subsets(20, N, 3, g),
    "limits.emulation.train_by_sgd": sgd,
    "limits.emulation.add_noise": lambda g: noisily(lambda model: limits.add_noise(model, 0.1, g)),
    "limits.population.noisy_step": lambda g: noisily(
        lambda model: noisy_step(model, [torch.zeros_like(p) for p in model.parameters()], 0.1, 0.1, g)
    ),
    "limits.population.Population.of": lambda g: population(g).inputs,
    "limits.junk.junk_flow": lambda g: (
        limits.junk_flow(network(), limits.Population.of(N), steps=2, rate=0.1, noise=0.1, generator=g).total
    ),
    "limits.junk.gradient_bound": lambda g: (
        limits.gradient_bound(network(), limits.Parities(N), steps=2, rate=0.1, noise=0.1, generator=g).flow.total
    ),
    "limits.learners.Learner.learn": lambda g: trained(limits.FromSamples(samples=4), g),
    "limits.learners.FromSamples.learn": lambda g: trained(limits.FromSamples(samples=4), g),
    "limits.learners.Descent.learn": lambda g: trained(limits.Descent(**DESCENT), g),
    "limits.learners.Descent.train": lambda g: steps_of(limits.Descent(**DESCENT), g),
    "limits.learners.QueryDescent.learn": lambda g: trained(
        limits.QueryDescent(answers="noise", model=lambda n: network(), steps=2), g
    ),
    "limits.predictability.estimate_cross_predictability": lambda g: (
        limits.estimate_cross_predictability(limits.Halfspaces(N), blocks=4, pairs=4, draws=16, generator=g).value
    ),
    "limits.predictability.data_free_accuracy": lambda g: limits.data_free_accuracy(
        FAMILIES["functions.CallableFamily"], functions=20, generator=g
    ),
    "limits.queries.QueryOracle": answers,
}
