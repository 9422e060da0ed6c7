"""One small problem per likelihood, with its Fisher matrix from the definition: all labels, autograd on log p."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Independent, MultivariateNormal

import tangentlab as tl
from tangentlab.testing.truth import gradient

EXAMPLES = 4
COVARIANCE = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 4.0]], dtype=torch.float64)
Labels = Iterator[tuple[float, Tensor]]


@dataclass(frozen=True)
class Problem:
    """A model with inputs, the name (or instance) of its likelihood, log p(y | outputs), and all labels with their mass."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    likelihood: str | tl.Likelihood
    log_p: Callable[[Tensor, Tensor], Tensor]
    labels: Callable[[Tensor], Labels]

    def model(self, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build().double()

    def inputs(self, examples: int = EXAMPLES) -> Tensor:
        return torch.randn(examples, *self.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def score(self, model: nn.Module, x: Tensor, label: Tensor) -> Tensor:
        """d log p(label | x) / dw, (d)."""
        return gradient(self.log_p(model(x[None])[0], label), model)

    def fisher(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """1/n sum_n sum_y p(y) score score^T."""
        total = torch.zeros(())
        for x in inputs:
            for mass, label in self.labels(model(x[None])[0].detach()):
                score = self.score(model, x, label)
                total = total + mass * torch.outer(score, score)
        return total / len(inputs)

    def second_moment(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """1/(n S) sum of score score^T at given labels (S, n, ...)."""
        rows = [self.score(model, x, label) for sample in labels for x, label in zip(inputs, sample)]
        return sum(torch.outer(row, row) for row in rows) / len(rows)


def _tail(*layers: nn.Module, outputs: int = 3) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs), *layers)


def _classes(axis: int) -> tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Labels]]:
    """Categorical over one axis of the outputs of one example, the other axes independent."""

    def log_p(outputs: Tensor, label: Tensor) -> Tensor:
        return Categorical(logits=outputs.movedim(axis, -1)).log_prob(label).sum()

    def labels(outputs: Tensor) -> Labels:
        positions = outputs.movedim(axis, -1).shape[:-1]
        for choice in product(range(outputs.shape[axis]), repeat=positions.numel()):
            label = torch.tensor(choice).reshape(positions)
            yield float(log_p(outputs, label).exp()), label

    return log_p, labels


def _log_softmax_p(outputs: Tensor, label: Tensor) -> Tensor:
    return outputs[label]


def _log_softmax_labels(outputs: Tensor) -> Labels:
    for label, value in enumerate(outputs):
        yield float(value.exp()), torch.tensor(label)


def _bernoulli_p(outputs: Tensor, label: Tensor) -> Tensor:
    return Bernoulli(logits=outputs).log_prob(label).sum()


def _bernoulli_labels(outputs: Tensor) -> Labels:
    for choice in product((0.0, 1.0), repeat=outputs.numel()):
        label = torch.tensor(choice, dtype=outputs.dtype).reshape(outputs.shape)
        yield float(_bernoulli_p(outputs, label).exp()), label


def _gaussian(covariance: Tensor) -> tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Labels]]:
    """N(f, covariance); the sigma points f +- sqrt(c) L e_i with equal mass give second moments exactly."""
    lower = torch.linalg.cholesky(covariance)
    size = len(covariance)

    def log_p(outputs: Tensor, label: Tensor) -> Tensor:
        return Independent(MultivariateNormal(outputs, covariance), 0).log_prob(label)

    def labels(outputs: Tensor) -> Labels:
        for column, sign in product(range(size), (1, -1)):
            yield 1 / (2 * size), outputs + sign * size**0.5 * lower[:, column]

    return log_p, labels


def _segmenter() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Conv2d(3, 3, 1))


_eye = torch.eye(3, dtype=torch.float64)
PROBLEMS = {
    "classification": Problem(_tail(), (3,), "classification", *_classes(-1)),
    "two classes": Problem(_tail(outputs=2), (3,), "classification", *_classes(-1)),
    "log-softmax": Problem(_tail(nn.LogSoftmax(-1)), (3,), "log_softmax", _log_softmax_p, _log_softmax_labels),
    "binary": Problem(_tail(outputs=1), (3,), "binary", _bernoulli_p, _bernoulli_labels),
    "binary without axis": Problem(_tail(nn.Flatten(0), outputs=1), (3,), "binary", _bernoulli_p, _bernoulli_labels),
    "multi-label": Problem(_tail(), (3,), "multi_label", _bernoulli_p, _bernoulli_labels),
    "regression": Problem(_tail(), (3,), "regression", *_gaussian(_eye)),
    "regression, variance": Problem(_tail(), (3,), tl.Regression(0.1), *_gaussian(0.1 * _eye)),
    "regression, variances": Problem(
        _tail(), (3,), tl.Regression(COVARIANCE.diagonal()), *_gaussian(torch.diag(COVARIANCE.diagonal()))
    ),
    "regression, covariance": Problem(_tail(), (3,), tl.Regression(COVARIANCE), *_gaussian(COVARIANCE)),
    "segmentation": Problem(_segmenter, (2, 2, 3), "segmentation", *_classes(0)),
    "tokens": Problem(_tail(), (2, 3), "classification", *_classes(-1)),
}
