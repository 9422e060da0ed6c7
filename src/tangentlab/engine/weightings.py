"""Weightings: which cotangents u_kn turn a Jacobian into the rows r_kn = J_n^T u_kn of a matrix 1/n sum_kn r_kn r_kn^T.

| weighting | rows per example | the matrix |
|---|---|---|
| `Unweighted` | outputs | Gram matrix of the Jacobian: the tangent kernel |
| `RandomSigns` | draws | its trace, by random signs over the outputs |
| `Exact` | rank of the output Fisher | Fisher matrix, the expectation over labels in closed form |
| `MonteCarlo` | samples | Fisher matrix, from labels drawn from the model |
| `SignedRoots` | 1 | trace of the Fisher matrix, by random signs over its factors |
| `Empirical` | 1 | second moment of loss gradients at the observed targets |
| `ConvexLoss` | outputs | generalized Gauss-Newton matrix |
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.batches import targets_of
from tangentlab.engine.likelihood import Classification, Likelihood, LogSoftmax, likelihood_of, loss_of
from tangentlab.engine.losses import LossFunction, output_gradient
from tangentlab.engine.memory import require_memory
from tangentlab.errors import InputError, NumericsError


class Weighting(ABC):
    """Which cotangents u_kn make the rows r_kn = J_n^T u_kn of a batch, given its outputs and number."""

    name: str

    @abstractmethod
    def count(self, outputs: Tensor) -> int:
        """K, the number of rows per example."""

    @abstractmethod
    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """u for k in index, (len(index), N, ...); `number` is the batch's place in the loader."""

    def prepare(self, outputs: Tensor, number: int) -> None:
        """Draw what is random about a batch now, so that later passes agree; nothing is by default."""
        return None

    def fresh(self) -> Weighting:
        """The same for other data: without label draws that belong to the old one."""
        return self

    def weigh(self, outputs: Tensor, batch: Any, number: int, tangents: Tensor) -> Tensor:
        """sum_k u_k <u_k, t> per example, for tangents (N, ...)."""
        u = self.cotangents(outputs, batch, number, range(self.count(outputs))).flatten(2)
        return torch.einsum("knc,knb,nb->nc", u, u, tangents.flatten(1)).reshape(outputs.shape)


class Exact(Weighting):
    """The expectation over labels, in closed form."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.likelihood, self.name = likelihood, f"{likelihood.name}, exact"

    def count(self, outputs: Tensor) -> int:
        """Rank of the output Fisher's factorization."""
        return self.likelihood.factor_count(outputs)

    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """The likelihood's factors."""
        return self.likelihood.factor(outputs, index)

    def weigh(self, outputs: Tensor, batch: Any, number: int, tangents: Tensor) -> Tensor:
        """The likelihood's closed form."""
        return self.likelihood.weigh(outputs, tangents)


class MonteCarlo(Weighting):
    """Labels drawn from the model, the same for every pass over the data: one row per sample and example.

    labels: draws to share with another matrix, one tensor (samples, N, ...) per batch in order, or one for all examples.
    seed: of the draws; by default one from the generator.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        samples: int = 1,
        generator: torch.Generator | None = None,
        labels: Any = None,
        *,
        seed: int | None = None,
    ) -> None:
        if samples < 1:
            raise InputError(f"The argument samples must be at least 1, not {samples}.")
        self.likelihood, self.samples = likelihood, samples
        self._joint = labels if isinstance(labels, Tensor) else None
        self.labels: list[Tensor] = [] if labels is None or self._joint is not None else list(labels)
        self._given = labels is not None
        if self._given:
            self.samples = samples = (self._joint if self._joint is not None else self.labels[0]).shape[0]
        self.name = f"{likelihood.name}, {samples} label sample{'s' * (samples > 1)}"
        if seed is None:
            seed = 0 if self._given else int(torch.randint(2**62, (), generator=generator))
        self._seed = seed

    def fresh(self) -> MonteCarlo:
        """New draws of the same number."""
        return MonteCarlo(self.likelihood, self.samples)

    def count(self, outputs: Tensor) -> int:
        """One row per sample."""
        return self.samples

    def prepare(self, outputs: Tensor, number: int) -> None:
        """Draw the labels of this batch."""
        self._labels_of(outputs, number)

    def _labels_of(self, outputs: Tensor, number: int) -> Tensor:
        if number >= len(self.labels):
            if self._joint is not None:
                start = sum(drawn.shape[1] for drawn in self.labels)
                self.labels.append(self._joint[:, start : start + outputs.shape[0]])
            elif self._given:
                raise InputError(
                    f"The argument labels= holds draws for {len(self.labels)} batches and the loader has more."
                )
            else:
                generator = torch.Generator(outputs.device).manual_seed(self._seed + number)
                self.labels.append(self.likelihood.sample(outputs, self.samples, generator))
        labels = self.labels[number]
        if labels.shape[1] != outputs.shape[0]:
            raise InputError(
                f"The argument labels= holds {labels.shape[1]} examples for batch {number}, which has {outputs.shape[0]}."
            )
        return labels

    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """Scores of the drawn labels over sqrt(samples)."""
        labels = self._labels_of(outputs, number)[index.start : index.stop]
        scores = self.likelihood.score(outputs, labels)
        return scores if self.samples == 1 else scores / self.samples**0.5


class Empirical(Weighting):
    """Gradients of the per-example loss at the observed targets: the second moment often called empirical Fisher."""

    name = "empirical second moment"

    def __init__(self, loss: Likelihood | LossFunction) -> None:
        self.loss = loss

    def count(self, outputs: Tensor) -> int:
        """One row per example."""
        return 1

    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """d loss_n / d outputs_n."""
        if isinstance(self.loss, Likelihood):
            return self.loss.loss_gradient(outputs, targets_of(batch)[None])
        return output_gradient(self.loss, outputs, batch)[1].detach()[None]


class Unweighted(Weighting):
    """The Jacobian itself: one row per output, or only some outputs."""

    name = "Jacobian"

    def __init__(self, outputs: Sequence[int] | None = None) -> None:
        self.chosen = None if outputs is None else list(outputs)

    def count(self, outputs: Tensor) -> int:
        """All outputs, or the chosen ones."""
        size = outputs[0].numel()
        if self.chosen is not None and not all(-size <= index < size for index in self.chosen):
            raise InputError(f"The outputs {self.chosen} were asked for and the model has {size} per example.")
        return size if self.chosen is None else len(self.chosen)

    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """Unit vectors."""
        return unit_cotangents(outputs, list(index) if self.chosen is None else [self.chosen[k] for k in index])


def unit_cotangents(outputs: Tensor, chosen: Sequence[int]) -> Tensor:
    """(len(chosen), N, ...) for outputs (N, ...): the k-th has a 1 at output chosen[k] of every example, counted flat."""
    units = outputs.new_zeros((len(chosen), outputs[0].numel()))
    units[range(len(chosen)), list(chosen)] = 1
    return units[:, None].expand(-1, outputs.shape[0], -1).reshape(len(chosen), *outputs.shape)


class RandomSigns(Weighting):
    """Cotangents of random signs over the outputs of every example: `draws` rows per example."""

    name = "random output signs"

    def __init__(self, draws: int, generator: torch.Generator | None = None) -> None:
        if draws < 1:
            raise InputError(f"The argument draws must be at least 1, not {draws}.")
        self.draws = draws
        self._seed = int(torch.randint(2**62, (), generator=generator))

    def count(self, outputs: Tensor) -> int:
        """One row per draw."""
        return self.draws

    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """Signs `(len(index), N, ...)`, the same whenever the batch is asked for again."""
        source = torch.Generator().manual_seed(self._seed + number)
        signs = torch.randint(0, 2, (self.draws, *outputs.shape), generator=source, dtype=torch.int8)
        return signs[index.start : index.stop].to(outputs) * 2 - 1


class SignedRoots(Weighting):
    """Cotangents `u = R s` with `R R^T = F_f` the Fisher matrix of an example's outputs and s random signs.

    `E[u u^T] = F_f`, so that `E |J_i^T u_i|^2 = tr J_i^T F_i J_i` from one backward, as with labels drawn from the model
    but without the rare labels that a confident model gives once in a thousand draws. Softmax classes with probabilities p
    have `u = sqrt(p) s - p <sqrt(p), s>`; other likelihoods sum their factors with signs.
    """

    name = "random signs of the Fisher factors"

    def __init__(self, likelihood: Likelihood, generator: torch.Generator) -> None:
        self.likelihood, self.generator = likelihood, generator

    def count(self, outputs: Tensor) -> int:
        """One row per example."""
        return 1

    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """u, `(1, N, ...)`."""
        if isinstance(self.likelihood, Classification):
            axis = self.likelihood.class_axis
            p = outputs.detach().softmax(axis)
            signed = p.sqrt() * self._signs(tuple(p.shape), p)
            return (signed - p * signed.sum(axis, keepdim=True))[None]
        count = self.likelihood.factor_count(outputs)
        signs = self._signs((count, outputs.shape[0]), outputs)
        factors = self.likelihood.factor(outputs, range(count))
        return torch.einsum("kn,kn...->n...", signs, factors)[None]

    def _signs(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.randint(0, 2, shape, generator=self.generator).to(like) * 2 - 1


class ConvexLoss(Weighting):
    """1/n sum_n J_n^T H_n J_n with H_n the Hessian of example n's loss in its outputs (Schraudolph 2002).

    H_n comes from two backward passes through the loss alone; the columns of a root of it are the cotangents, so every
    representation follows from them as for a Fisher matrix. One row per output. A loss that is not convex in the outputs is
    refused: its Gauss-Newton matrix is not a second moment.
    """

    name = "generalized Gauss-Newton"

    def __init__(self, loss: str | Likelihood | LossFunction) -> None:
        likelihood = likelihood_of(loss) if isinstance(loss, str) else loss
        if isinstance(likelihood, LogSoftmax):
            raise InputError(
                "The negative log-likelihood of 'log_softmax' is linear in its outputs, so its Gauss-Newton matrix is zero: "
                "take the logits as outputs with loss='classification', or FIM(..., likelihood='log_softmax')."
            )
        self.loss = loss_of(likelihood)
        self._checked: set[int] = set()
        self._roots: tuple[weakref.ref[Tensor], Tensor] | None = None

    def fresh(self) -> ConvexLoss:
        """Nothing is known about other data."""
        return ConvexLoss(self.loss)

    def count(self, outputs: Tensor) -> int:
        """One row per output."""
        return outputs[0].numel()

    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """Columns of a root of H_n."""
        if self._roots is None or self._roots[0]() is not outputs:
            self._roots = weakref.ref(outputs), self._square_roots(outputs, batch, number)
        roots = self._roots[1][:, :, list(index)]
        return roots.permute(2, 0, 1).reshape(len(index), *outputs.shape)

    def weigh(self, outputs: Tensor, batch: Any, number: int, tangents: Tensor) -> Tensor:
        """H_n t, by one product with the Hessian of the loss; convexity is checked once per batch."""
        if number not in self._checked:
            self._square_roots(outputs, batch, number)
        wide = _wide(outputs)
        leaf, gradient = output_gradient(self.loss, wide, batch)
        return _product(gradient, leaf, tangents.reshape(outputs.shape).to(wide.dtype)).detach().to(outputs.dtype)

    def hessians(self, outputs: Tensor, batch: Any) -> Tensor:
        """(N, C, C): d^2 loss_n / d outputs_n^2, one backward per output; in single precision where outputs are in half."""
        size = outputs[0].numel()
        require_memory(
            2 * outputs.shape[0] * size**2 * outputs.element_size(),
            f"Hessians of the loss in {size:,} outputs for {outputs.shape[0]} examples",
            "Smaller batches need less; for token or pixel losses FIM(...) has a closed form.",
        )
        outputs = _wide(outputs)
        leaf, gradient = output_gradient(self.loss, outputs, batch)
        eye = torch.eye(size, dtype=outputs.dtype, device=outputs.device)
        rows = [_product(gradient, leaf, unit.expand(outputs.shape[0], -1).reshape(outputs.shape)) for unit in eye]
        return torch.stack([row.detach().flatten(1) for row in rows], 1)

    def _square_roots(self, outputs: Tensor, batch: Any, number: int) -> Tensor:
        """R_n with R_n R_n^T = H_n, (N, C, C)."""
        values, vectors = torch.linalg.eigh(self.hessians(outputs, batch))
        if _negative(values, values) and _negative(values, self._values_at_zero(outputs, batch)):
            raise NumericsError(
                f"The loss is not convex in the outputs (its Hessian has the eigenvalue {float(values.min()):.3g}), so its "
                "Gauss-Newton matrix is not positive semi-definite: take Hessian(...), or a loss that is convex."
            )
        self._checked.add(number)
        return (vectors * values.clamp_min(0).sqrt()[:, None, :]).to(outputs.dtype)

    def _values_at_zero(self, outputs: Tensor, batch: Any) -> Tensor:
        """Eigenvalues (N, C) of the Hessians at outputs of zero: the scale of rounding where a loss is saturated."""
        hessians = self.hessians(torch.zeros_like(outputs), batch)
        return torch.linalg.eigvalsh(hessians.nan_to_num(0.0, 0.0, 0.0))


def _negative(values: Tensor, scale: Tensor) -> bool:
    """Whether the least of ascending eigenvalues (N, C) is negative by more than rounding of values of a scale (N, C)."""
    info = torch.finfo(values.dtype)
    rounding = 1e3 * info.eps * values.shape[-1] * scale.abs().amax(1).clamp_min(info.tiny)
    return bool((values[:, 0] < -rounding).any())


def _wide(outputs: Tensor) -> Tensor:
    """Outputs in a type in which eigenvalues can be computed."""
    return outputs.detach().to(torch.promote_types(outputs.dtype, torch.float32))


def _product(gradient: Tensor, leaf: Tensor, tangents: Tensor) -> Tensor:
    """Hessian of the summed loss times tangents; examples do not mix, so this is H_n t_n for all of them."""
    if not gradient.requires_grad:
        return torch.zeros_like(leaf)
    (result,) = torch.autograd.grad(gradient, leaf, tangents, retain_graph=True, materialize_grads=True)
    return result
