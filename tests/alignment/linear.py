"""Linear models with random features: the situation in which the statements on modes and bounds are exact."""

import torch


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def features(examples, dim, seed=0):
    """Phi (examples, dim) with a decaying spectrum."""
    scales = torch.arange(1, dim + 1, dtype=torch.float64) ** -0.7
    return normal(examples, dim, seed=seed) * scales


def network(inputs=3, outputs=2, width=7, seed=0):
    """A smooth float64 network with several outputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Linear(inputs, width), torch.nn.Tanh(), torch.nn.Linear(width, outputs)
        ).double()
