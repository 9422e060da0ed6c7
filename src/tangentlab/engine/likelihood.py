"""What "Fisher" means for an output: exact factors, samples and scores of p(y | outputs).

Every likelihood gives, in the space of the outputs f of one example,

    F_f = E_y[ (d log p / d f) (d log p / d f)^T ] = sum_k u_k u_k^T,

so that the Fisher of the parameters is F = 1/n sum_n sum_k (J_n^T u_kn)(J_n^T u_kn)^T. Outputs with several positions
(tokens, pixels) are independent given the input: their Fishers add up within an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangentlab.engine.losses import (
    IGNORED,
    LossFunction,
    cross_entropy,
    exponentials,
    label_places,
    like_outputs,
    one_hot,
    probabilities,
    require_classes,
)
from tangentlab.engine.multinomial import multinomial_factor
from tangentlab.errors import InputError


class Likelihood(ABC):
    """A family p(y | f). Outputs are (N, ...) throughout; a cotangent has the shape of the outputs."""

    name: str

    @abstractmethod
    def factor_count(self, outputs: Tensor) -> int:
        """Number of vectors u_k in the exact factorization."""

    @abstractmethod
    def factor(self, outputs: Tensor, index: range) -> Tensor:
        """Vectors u_k for k in index, (len(index), N, ...)."""

    @abstractmethod
    def weigh(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """F_f times tangents (N, ...), per example."""

    @abstractmethod
    def sample(self, outputs: Tensor, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Labels drawn from p(y | outputs), (samples, N, ...)."""

    @abstractmethod
    def score(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """d log p(labels | f) / d f, (samples, N, ...)."""

    def loss_gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Minus the score."""
        return -self.score(outputs, labels)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-log p(targets | f), (N) or (N, positions), up to a constant. Only losses and Hessians need it."""
        raise NotImplementedError


class Classification(Likelihood):
    """Softmax over one axis: (N, C) logits; (N, T, V) token logits with classes last; (N, C, H, W) with class_axis=1.

    diag(p) - p p^T = sum_{j<C-1} u_j u_j^T (see `multinomial`): one backward fewer than classes, and no cancellation.

    Observed labels equal to `ignore_index` (None for none) are passed over: score and loss are zero there. Expectations over
    labels and labels drawn from the model do not look at them.
    """

    def __init__(self, class_axis: int = -1, ignore_index: int | None = IGNORED) -> None:
        self.class_axis, self.ignore_index = class_axis, ignore_index
        self.name = "classification" if class_axis == -1 else "segmentation"

    def factor_count(self, outputs: Tensor) -> int:
        """(C - 1) per position."""
        classes = require_classes(outputs, self.class_axis)
        return (classes - 1) * (outputs[0].numel() // classes)

    def factor(self, outputs: Tensor, index: range) -> Tensor:
        """Vectors k = position * (C - 1) + j."""
        classes = require_classes(outputs, self.class_axis)
        p = outputs.detach().movedim(self.class_axis, -1).softmax(-1)
        shape, p = p.shape, p.reshape(len(p), -1, classes)
        tails = p.flip(-1).cumsum(-1).flip(-1)
        if p.shape[1] == 1:
            return self._classes_back(multinomial_factor(p[:, 0], tails[:, 0], index).reshape(len(index), *shape))
        u = p.new_zeros((len(index), *p.shape))
        for row, k in enumerate(index):
            position, j = divmod(k, classes - 1)
            rest, total = tails[:, position, j + 1], tails[:, position, j].clamp_min(torch.finfo(p.dtype).tiny)
            scale = (p[:, position, j] * rest / total).sqrt()
            u[row, :, position, j] = scale
            share = p[:, position, j + 1 :] / rest.clamp_min(torch.finfo(p.dtype).tiny)[:, None]
            u[row, :, position, j + 1 :] = -scale[:, None] * share
        return self._classes_back(u.reshape(len(index), *shape))

    def _classes_back(self, stacked: Tensor) -> Tensor:
        """(samples, N, ..., C) with the classes where they are in the outputs."""
        return stacked.movedim(-1, self.class_axis if self.class_axis < 0 else self.class_axis + 1)

    def weigh(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """p * (t - <p, t>), with t counted from its value at the likeliest class: no cancellation when p is near 1."""
        require_classes(outputs, self.class_axis)
        p = outputs.detach().softmax(self.class_axis)
        t = tangents - tangents.gather(self.class_axis, p.argmax(self.class_axis, keepdim=True))
        return p * (t - (p * t).sum(self.class_axis, keepdim=True))

    def sample(self, outputs: Tensor, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Class indices (samples, N, positions...)."""
        require_classes(outputs, self.class_axis)
        p = outputs.detach().movedim(self.class_axis, -1).softmax(-1)
        drawn = torch.multinomial(p.reshape(-1, p.shape[-1]), samples, replacement=True, generator=generator)
        return drawn.t().reshape(samples, *p.shape[:-1])

    def score(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """onehot(y) - p."""
        return self.loss_gradient(outputs, labels).neg_()

    def loss_gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """p - onehot(y), with 1 - p_y as the sum of the other probabilities: accurate when p_y is near 1. Two passes."""
        require_classes(outputs, self.class_axis)
        logits = outputs.detach().movedim(self.class_axis, -1)
        places, counts = label_places(labels, logits, self.ignore_index)
        p = logits.softmax(-1)[None]
        others = (p if len(labels) == 1 else p.repeat(len(labels), *[1] * logits.ndim)).scatter_(-1, places, 0.0)
        others.scatter_(-1, places, -others.sum(-1, keepdim=True))
        others = others if counts.all() else others.masked_fill_(~counts, 0.0)
        return self._classes_back(others)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy, zero where the label is to be ignored."""
        return cross_entropy(F.cross_entropy, outputs, targets, self.class_axis, self.ignore_index)


class _Diagonal(Likelihood):
    """Likelihoods whose output Fisher is diagonal: u_j = sqrt(w_j) e_j for every output j."""

    @abstractmethod
    def weights(self, outputs: Tensor) -> Tensor:
        """Diagonal of F_f, shape of the outputs."""

    def factor_count(self, outputs: Tensor) -> int:
        """One vector per output."""
        return outputs[0].numel()

    def factor(self, outputs: Tensor, index: range) -> Tensor:
        """sqrt(w_j) e_j."""
        roots = self.weights(outputs.detach()).sqrt().flatten(1)
        u = roots.new_zeros((len(index), *roots.shape))
        for row, j in enumerate(index):
            u[row, :, j] = roots[:, j]
        return u.reshape(len(index), *outputs.shape)

    def weigh(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """w * t."""
        return self.weights(outputs.detach()) * tangents


class LogSoftmax(_Diagonal):
    """Outputs that are already log-probabilities over the last axis: F_f = diag(p).

    `ignore_index` as in `Classification`.
    """

    name = "log_softmax"

    def __init__(self, ignore_index: int | None = IGNORED) -> None:
        self.ignore_index = ignore_index

    def weights(self, outputs: Tensor) -> Tensor:
        """p = exp(outputs)."""
        return exponentials(outputs)

    def sample(self, outputs: Tensor, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Class indices (samples, N, positions...)."""
        p = self.weights(outputs.detach())
        drawn = torch.multinomial(p.reshape(-1, p.shape[-1]), samples, replacement=True, generator=generator)
        return drawn.t().reshape(samples, *p.shape[:-1])

    def score(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """onehot(y)."""
        return one_hot(labels, outputs.detach(), self.ignore_index)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Minus the log-probability of the label, zero where it is to be ignored."""
        return cross_entropy(F.nll_loss, outputs, targets, -1, self.ignore_index)


class Binary(_Diagonal):
    """Independent Bernoulli logits, one or several per example (multi-label): w = p (1 - p)."""

    name = "binary"

    def weights(self, outputs: Tensor) -> Tensor:
        """sigmoid(f) sigmoid(-f)."""
        return outputs.sigmoid() * (-outputs).sigmoid()

    def sample(self, outputs: Tensor, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """0 / 1 labels, (samples, *outputs.shape)."""
        p = outputs.detach().sigmoid().expand(samples, *outputs.shape)
        return torch.bernoulli(p, generator=generator)

    def score(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """y - p = y (1 - p) - (1 - y) p, which does not cancel when p is near y."""
        y, f = like_outputs(labels, outputs), outputs.detach()
        return y * (-f).sigmoid() - (1 - y) * f.sigmoid()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of every output; targets lie in [0, 1]."""
        return F.binary_cross_entropy_with_logits(outputs, probabilities(targets, outputs), reduction="none")


class Regression(Likelihood):
    """Gaussian N(f, variance): the Fisher uses the inverse of the variance.

    variance: a number, a vector (outputs) of variances, or a full covariance (outputs, outputs).
    """

    name = "regression"

    def __init__(self, variance: float | Tensor = 1.0) -> None:
        self.variance = variance if isinstance(variance, Tensor) else torch.tensor(variance, dtype=torch.float64)
        if self.variance.ndim > 2 or (self.variance.ndim == 2 and self.variance.shape[0] != self.variance.shape[1]):
            raise InputError("The variance must be a number, a vector (outputs) or a matrix (outputs, outputs).")
        if not bool((torch.diagonal(self.variance) if self.variance.ndim == 2 else self.variance).gt(0).all()):
            raise InputError("Variances must be positive.")
        if self.variance.ndim == 2:
            symmetric = torch.allclose(self.variance, self.variance.t())
            if not symmetric or int(torch.linalg.cholesky_ex(self.variance.double())[1]):
                raise InputError("A covariance must be symmetric and positive definite.")

    def _root(self, outputs: Tensor) -> Tensor:
        """L with L L^T = covariance, (outputs, outputs), or its diagonal (outputs); in double precision, which half has not."""
        size = outputs[0].numel()
        variance = self.variance.double()
        if variance.ndim > 0 and variance.shape[0] != size:
            raise InputError(f"The variance is for {variance.shape[0]} outputs and the model has {size}.")
        return torch.linalg.cholesky(variance) if variance.ndim == 2 else variance.sqrt().expand(size)

    def _inverse_root(self, outputs: Tensor) -> Tensor:
        """R with R R^T = covariance^-1, or its diagonal, in the type of the outputs."""
        root = self._root(outputs)
        if root.ndim == 1:
            return (1 / root).to(outputs)
        eye = torch.eye(len(root), dtype=root.dtype, device=root.device)
        return torch.linalg.solve_triangular(root, eye, upper=False).t().to(outputs)

    def factor_count(self, outputs: Tensor) -> int:
        """One vector per output."""
        return outputs[0].numel()

    def factor(self, outputs: Tensor, index: range) -> Tensor:
        """Columns of R."""
        root = self._inverse_root(outputs)
        units = torch.zeros((len(index), root.shape[0]), dtype=root.dtype, device=root.device)
        units[range(len(index)), list(index)] = 1
        columns = _times(units, root.t())
        return columns[:, None, :].expand(-1, outputs.shape[0], -1).reshape(len(index), *outputs.shape)

    def weigh(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """covariance^-1 t."""
        root = self._inverse_root(outputs)
        return _times(_times(tangents.flatten(1), root), root.t()).reshape(outputs.shape)

    def sample(self, outputs: Tensor, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """f + L z."""
        lower = self._root(outputs).to(outputs)
        z = torch.randn(
            (samples, outputs.shape[0], lower.shape[0]), generator=generator, dtype=lower.dtype, device=lower.device
        )
        return outputs.detach() + _times(z, lower.t()).reshape(samples, *outputs.shape)

    def score(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """covariance^-1 (y - f)."""
        residual = (like_outputs(labels, outputs) - outputs.detach()).flatten(2)
        root = self._inverse_root(outputs)
        return _times(_times(residual, root), root.t()).reshape(-1, *outputs.shape)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Half the squared length of R^T (f - y)."""
        residual = (outputs - like_outputs(targets[None], outputs)[0]).flatten(1)
        return 0.5 * _times(residual, self._inverse_root(outputs.detach())).square().sum(1)


def _times(vectors: Tensor, matrix: Tensor) -> Tensor:
    """vectors (..., k) times a matrix (k, k), or times a diagonal one (k)."""
    return vectors * matrix if matrix.ndim == 1 else vectors @ matrix


_BY_NAME: dict[str, Callable[[], Likelihood]] = {
    "classification": Classification,
    "classif_logits": Classification,
    "log_softmax": LogSoftmax,
    "classif_logsoftmax": LogSoftmax,
    "binary": Binary,
    "multi_label": Binary,
    "classif_binary_logits": Binary,
    "regression": Regression,
    "segmentation": lambda: Classification(class_axis=1),
    "segmentation_logits": lambda: Classification(class_axis=1),
}


OWN = "model"
"""The name of a model's own loss, where a loss is enough: see `own_loss`."""


def likelihood_of(likelihood: str | Likelihood) -> Likelihood:
    """A likelihood by name (nngeometry's names included), or the instance itself."""
    if isinstance(likelihood, Likelihood):
        return likelihood
    if likelihood == OWN:
        raise InputError(
            f"{OWN!r} stands for a loss that is read from the model's output, and a loss is not a distribution of labels: name "
            "the likelihood, or take FIM_Empirical, GradientCovariance, GGN or Hessian."
        )
    if likelihood not in _BY_NAME:
        raise InputError(f"Unknown likelihood {likelihood!r}; known are: {', '.join(_BY_NAME)}, or a Likelihood.")
    return _BY_NAME[likelihood]()


def loss_of(loss: str | Likelihood | LossFunction) -> LossFunction:
    """The loss itself, or the negative log-likelihood (without constants) of a likelihood or its name."""
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", "none") != "none":
        raise InputError(
            f"{type(loss).__name__} reduces over examples: pass {type(loss).__name__}(reduction='none'), "
            "the mean over examples is taken here."
        )
    if not isinstance(loss, str | Likelihood):
        return loss
    likelihood = likelihood_of(loss)
    if type(likelihood).loss is Likelihood.loss:
        raise InputError(
            f"No loss is known for the likelihood {likelihood.name!r}: pass loss=callable(outputs, targets)."
        )
    return likelihood.loss
