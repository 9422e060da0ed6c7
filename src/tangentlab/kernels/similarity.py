"""Alignment of kernels: KA, CKA, unbiased and minibatch CKA, with labels, between layers, groups, moments, representations.

A kernel is `(c, n, c, n)`, c outputs of n examples (`FMat`), or a matrix `(n, n)`, which is one output. With the inner
product `<K, L> = tr K L` of matrices, every alignment here is a cosine `<K, L> / (|K| |L|)`; they differ in what is
centred:

=================  ==================================================================================================
`None`           KA: nothing. Both kernels as they are (Cristianini et al. 2001).
`"global"`       CKA of the paper: one mean feature over all `c n` rows, `C K C` with `C = I - 1 1^T / (c n)`.
`"per_output"`   one mean feature over examples for each output, `(I_c (x) C_n) K (I_c (x) C_n)`; what the paper's
                   spectra use, and what its authors' code uses for the alignment, too.
=================  ==================================================================================================

For one output the last two are the same. A kernel centred per output is also centred globally, so that `<K, K_Y>` is then
the same under both centrings of the labels and only `|K_Y|` differs: with one-hot labels its root is `n (1 - 1/c)`
globally and `n - sum_k n_k^2 / n` per output, equal for balanced classes.

**Degenerate input has a value.** A kernel that is zero, or zero up to rounding after centring (a constant kernel, labels of
one class, a single example), is aligned with nothing: the alignment is 0, never NaN. All sums are taken in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.kernels.centring import AnyKernel, centred, frobenius, kernel_data
from tangentlab.linalg import rounding_rtol


def ka(first: AnyKernel, second: AnyKernel) -> float:
    """Kernel alignment `tr K L / (|K|_F |L|_F)`, nothing centred: between 0 and 1, and 1 for proportional kernels."""
    return cka(first, second, center=None)


def cka(first: AnyKernel, second: AnyKernel, center: str | None = "global") -> float:
    """Centred kernel alignment `tr K_c L_c / (|K_c|_F |L_c|_F)`, between 0 and 1.

    Invariant to the scale of both kernels and, centred, to features that are constant. 1 only if the centred kernels are
    proportional; 0 by definition if one of them is zero.

    Args:
        first: K, `(c, n, c, n)` or `(n, n)`.
        second: L, of the same shape.
        center: `"global"`, `"per_output"` or None (see the module).
    """
    return _similarity(*_centred_pair(first, second, center))


def label_alignment(
    kernel: AnyKernel, labels: Tensor, center: str | None = "global", n_classes: int | None = None
) -> float:
    """CKA of a kernel and the kernel of the labels, which is never formed: `tr Y_c^T K_c Y_c / (|K_c| |Y_c Y_c^T|)`.

    Args:
        kernel: K, `(c, n, c, n)` or `(n, n)`.
        labels: see `label_features`.
        center: as in `cka`, for the kernel and the labels alike.
        n_classes: see `label_features`.

    Returns:
        A number between 0 and 1; 1 only if `K_c` is proportional to `Y_c Y_c^T`. Cost: `(c n)^2`.
    """
    data = kernel_data(kernel)
    features = label_features(labels, data.shape[0], n_classes).to(data.device)
    if features.shape[1] != data.shape[1]:
        raise InputError(f"The kernel has {data.shape[1]} examples and there are {features.shape[1]} labels.")
    matrix, targets = _flat(centred(data, center).data, _centred_labels(features, center))
    product = float((targets * (matrix @ targets)).sum())
    return _cosine(product, frobenius(matrix) ** 2 * frobenius(targets.t() @ targets) ** 2)


def label_features(labels: Tensor, outputs: int, n_classes: int | None = None) -> Tensor:
    """Features Y of the label kernel `K_Y = Y Y^T`, `(outputs, examples, features)` in float64.

    * several outputs: one feature, the one-hot labels themselves as one vector of all outputs and examples, so that K_Y has
      rank one (`tangentlab.label_kernel`); real targets `(examples, outputs)` are taken as they are;
    * one output, two classes (integers 0 and 1, or -1 and 1): one feature, the signs -1 and 1;
    * one output, more classes (a kernel summed over outputs): one feature per class, so that `K_Y[i, j]` is 1 for examples of
      one class and 0 otherwise; real targets `(examples,)` or `(examples, features)` are taken as they are.

    `n_classes` is only needed for one output: integers 0 and 1 of a problem with more classes.
    """
    if not labels.numel():
        raise InputError("There are no labels.")
    if labels.is_floating_point():
        values = labels.double() if labels.ndim > 1 else labels.double()[:, None]
        if values.ndim != 2 or (outputs > 1 and values.shape[1] != outputs):
            raise InputError(f"Real targets of shape {tuple(labels.shape)} do not fit a kernel of {outputs} outputs.")
        if not bool(torch.isfinite(values).all()):
            raise NumericsError("The targets have non-finite entries; leave these examples out of kernel and targets.")
        return values.t()[:, :, None] if outputs > 1 else values[None]
    if labels.ndim != 1:
        raise InputError(f"Class labels are integers (examples,), not of shape {tuple(labels.shape)}.")
    if outputs == 1 and (n_classes or 2) == 2 and int(labels.min()) >= -1 and int(labels.max()) <= 1:
        if int(labels.min()) < 0 and bool((labels == 0).any()):
            raise InputError("Two classes are 0 and 1, or -1 and 1; these labels hold both -1 and 0.")
        return torch.where(labels > 0, 1.0, -1.0).double()[None, :, None]
    classes = outputs if outputs > 1 else n_classes or int(labels.max()) + 1
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise InputError(f"Labels must lie in 0..{classes - 1}, found {int(labels.min())}..{int(labels.max())}.")
    hot = torch.nn.functional.one_hot(labels.long(), classes).double()
    return hot.t()[:, :, None] if outputs > 1 else hot[None]


def layer_alignment(
    kernels: Mapping[str, AnyKernel], labels: Tensor, center: str | None = "global", n_classes: int | None = None
) -> dict[str, float]:
    """`label_alignment` of every layer's kernel, as `NTK(..., per_layer=True)` gives them."""
    return {name: label_alignment(kernel, labels, center, n_classes) for name, kernel in kernels.items()}


@dataclass(frozen=True)
class Hierarchy:
    """Alignment on easy and on difficult examples.

    Attributes:
        easy: `label_alignment` of the kernel on the easy examples.
        difficult: the same on as many difficult examples, with the labels used in training.
    """

    easy: float
    difficult: float

    @property
    def ratio(self) -> float:
        """`easy / difficult`; infinite when only the difficult alignment is 0, and 1 when both are."""
        if self.difficult > 0:
            return self.easy / self.difficult
        return math.inf if self.easy > 0 else 1.0


def hierarchical_alignment(
    easy: tuple[AnyKernel, Tensor],
    difficult: tuple[AnyKernel, Tensor],
    center: str | None = "global",
    n_classes: int | None = None,
) -> Hierarchy:
    """Alignment on two groups of training examples, each given as (kernel, labels).

    Alignment depends on the number of examples, so the groups must have the same size.
    """
    if len(easy[1]) != len(difficult[1]):
        raise InputError(
            f"Alignments are compared on groups of one size, these have {len(easy[1])} and {len(difficult[1])} examples."
        )
    values = (label_alignment(kernel, labels, center, n_classes) for kernel, labels in (easy, difficult))
    return Hierarchy(*values)


def kernel_distance(first: AnyKernel, second: AnyKernel, center: str | None = None) -> float:
    """`1 - cosine` of one network's kernel at two moments of training: 0 where it only changed its scale.

    Not centred by default, as in Fort et al. (2020). Two kernels that are zero (after centring) are at distance 0, and one
    that is zero has distance 1 from every other.
    """
    one, two = _centred_pair(first, second, center)
    if not bool(one.any()) and not bool(two.any()):
        return 0.0
    return max(0.0, 1 - _similarity(one, two))


def kernel_velocity(kernels: Sequence[AnyKernel], steps: Sequence[float], center: str | None = None) -> list[float]:
    """`kernel_distance` of consecutive kernels over the steps between them, one fewer than there are kernels."""
    if len(kernels) != len(steps) or len(kernels) < 2:
        raise InputError(
            f"A velocity needs two or more kernels and as many steps, not {len(kernels)} and {len(steps)}."
        )
    if any(later <= sooner for sooner, later in zip(steps, steps[1:], strict=False)):
        raise InputError(f"The steps of a velocity increase, these do not: {list(steps)}.")
    pairs = zip(kernels, kernels[1:], steps, steps[1:], strict=False)
    return [kernel_distance(first, second, center) / (end - start) for first, second, start, end in pairs]


def representation_alignment(kernel: AnyKernel, features: Tensor, center: str | None = "global") -> float:
    """CKA of a kernel, summed over its outputs, and the kernel `R R^T` of a representation `(examples, ...)`.

    The sum over outputs comes first and the `(n, n)` kernel is centred.
    """
    summed = torch.einsum("cncm->nm", kernel_data(kernel))
    rows = features.detach().flatten(1).double().to(summed.device)
    if len(rows) != len(summed):
        raise InputError(f"The kernel has {len(summed)} examples and the representation {len(rows)}.")
    return cka(summed, rows @ rows.t(), center)


def unbiased_hsic(first: AnyKernel, second: AnyKernel) -> float:
    """Unbiased estimate of `<K_c, L_c> / n^2`, centred per output, from n >= 4 independent examples.

    The U-statistic over distinct examples `E[K_ij L_ij] - E[K_ij L_iq] - E[K_ij L_qj] + E[K_ij L_qr]`. With one output this
    is HSIC_1 of Song et al. (2012). With c outputs it is summed over all pairs of outputs (whose blocks are not symmetric), and
    estimates the squared norm of the sum over outputs of the cross-covariances of the two kernels' features.
    It may be negative. Cost: `(c n)^2`.
    """
    one, two = kernel_data(first), kernel_data(second)
    if one.shape != two.shape:
        raise InputError(f"These kernels have different (outputs, examples): {_sizes(one)} and {_sizes(two)}.")
    n = one.shape[1]
    if n < 4:
        raise InputError(f"The unbiased estimate is over 4-tuples of distinct examples and needs n >= 4, not {n}.")
    others = 1 - torch.eye(n, dtype=torch.float64, device=one.device)[:, None, :]
    one, two = one * others, two * others
    (rows1, columns1), (rows2, columns2) = ((k.sum(3).transpose(1, 2), k.sum(1)) for k in (one, two))  # (c, c', n)
    same, swapped = (one * two).sum(), (one * two.transpose(1, 3)).sum()
    common = (rows1 * rows2).sum() + (columns1 * columns2).sum()
    chained = (rows1 * columns2).sum() + (columns1 * rows2).sum()
    totals = (rows1.sum(2) * rows2.sum(2)).sum()
    pairs = n * (n - 1)
    triples = pairs * (n - 2)
    all_distinct = totals - common - chained + same + swapped
    return float(same / pairs - (common - 2 * same) / triples + all_distinct / (triples * (n - 3)))


def unbiased_cka(first: AnyKernel, second: AnyKernel) -> float:
    """CKA from unbiased estimates, `H(K, L) / sqrt(H(K, K) H(L, L))` with H of `unbiased_hsic`.

    Its value does not rise with the width of the features at a fixed number of examples, as that of `cka` does; it may be
    slightly negative. 0 by definition where one of the self-similarities is not positive.
    """
    batches = MinibatchCKA()
    batches.update(first, second)
    return batches.value()


class MinibatchCKA:
    """`unbiased_cka` of data that come in minibatches (Nguyen, Raghu and Kornblith 2021).

    The three estimates H(K, L), H(K, K), H(L, L) are averaged over minibatches, and only then divided: their mean over all
    minibatches of one size that could be drawn *is* their value on all data, which no mean of CKAs has. Minibatches of
    different sizes are weighted by their examples.
    """

    def __init__(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64)
        self._rounding = torch.zeros(2, dtype=torch.float64)
        self._units: list[float] = []
        self.examples = 0

    def update(self, first: AnyKernel, second: AnyKernel) -> None:
        """Take in the kernels of one more minibatch, n >= 4."""
        one, two = (self._scaled(kernel_data(kernel), place) for place, kernel in enumerate((first, second)))
        n = one.shape[1]
        values = [unbiased_hsic(a, b) for a, b in ((one, two), (one, one), (two, two))]
        self._sums += n * torch.tensor(values, dtype=torch.float64)
        self._rounding += n * torch.tensor([_rounding_of_square(kernel) for kernel in (one, two)], dtype=torch.float64)
        self.examples += n

    def _scaled(self, data: Tensor, place: int) -> Tensor:
        """In the unit of the first minibatch, a power of two, so that no square overflows or vanishes."""
        if len(self._units) <= place:
            largest = float(data.abs().max())
            self._units.append(2.0 ** math.floor(math.log2(largest)) if largest > 0 else 1.0)
        return data / self._units[place]

    def value(self) -> float:
        """The alignment on what was seen."""
        if not self.examples:
            raise InputError("No minibatch was seen: call update(first, second) first.")
        both, one, two = self._sums.tolist()
        if one <= self._rounding[0] or two <= self._rounding[1]:
            return 0.0
        return both / math.sqrt(one) / math.sqrt(two)


def _centred_pair(first: AnyKernel, second: AnyKernel, center: str | None) -> tuple[Tensor, Tensor]:
    """Two kernels of one shape, each centred and in a unit of its own."""
    one, two = kernel_data(first), kernel_data(second)
    if one.shape != two.shape:
        raise InputError(
            f"These kernels have different (outputs, examples): {_sizes(one)} and {_sizes(two)}. Kernels of different "
            "outputs are compared by their sums over outputs: NTK(..., outputs='trace') or K.trace_over_outputs()."
        )
    return centred(one, center).data, centred(two, center).data


def _similarity(one: Tensor, two: Tensor) -> float:
    """Their cosine."""
    return _cosine(float((one * two).sum()), frobenius(one) ** 2 * frobenius(two) ** 2)


def _sizes(data: Tensor) -> tuple[int, int]:
    return data.shape[0], data.shape[1]


def _flat(data: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """A kernel as `(c n, c n)` and features `(c, n, ...)` as `(c n, ...)`, output-major or example-major as it lies."""
    if not data.is_contiguous():
        data, features = data.permute(1, 0, 3, 2), features.transpose(0, 1)
    return data.flatten(2).flatten(0, 1), features.flatten(0, 1)


def _rounding_of_square(data: Tensor) -> float:
    """What `unbiased_hsic(K, K)` may be for a constant kernel: rounding of K squared, or that of the float64 sums."""
    n = data.shape[1]
    relative = max(rounding_rtol(data.dtype, n) ** 2, rounding_rtol(torch.float64, n))
    return relative * float(data.double().square().sum()) / n**2


def _centred_labels(features: Tensor, center: str | None) -> Tensor:
    """`(c, n, features)`, centred as the kernel is."""
    if center not in (None, "per_output", "global"):
        raise InputError(f"The argument center must be None, 'per_output' or 'global', not {center!r}.")
    if center is None:
        return features
    moved = features - features.mean((1,) if center == "per_output" else (0, 1), keepdim=True)
    rounding = rounding_rtol(features.dtype, features.shape[0] * features.shape[1])
    return moved if frobenius(moved) > rounding * frobenius(features) else torch.zeros_like(moved)


def _cosine(product: float, squares: float) -> float:
    """A cosine that is 0 beside the zero vector and does not leave [-1, 1] by rounding."""
    return max(-1.0, min(1.0, product / math.sqrt(squares))) if squares > 0 else 0.0
