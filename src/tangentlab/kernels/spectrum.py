"""The spectrum of a kernel and the numbers that summarize it, from a dense kernel or from products with a large one.

Both come as a `KernelSpectrum`: eigenvalues with multiplicities. A dense kernel has multiplicities of one. A large kernel has
its top eigenvalues one by one and the rest as a quadrature, whose nodes stand for so many eigenvalues each; every summary is
then the same sum over values and multiplicities.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.kernels.centring import AnyKernel, centred, kernel_data
from tangentlab.linalg import Quadrature, lanczos, lanczos_quadrature, rounding_rtol, safe_eigh
from tangentlab.objects.matrix_free import MatrixFree

PAPER_TRACE_RATIOS = (40, 80, 160)
"""The k for which Baratin et al. (2021) highlight T_k, of kernels with 1000 rows."""


@dataclass(frozen=True)
class KernelSpectrum:
    """Eigenvalues of a positive semi-definite kernel and their multiplicities, the largest first.

    The kernel of zero has rank 0, effective rank 0, stable rank 0, participation ratio 0, and T_k = 1 for every k, since its
    first k eigenvalues hold all there is.

    Attributes:
        values: `(m,)` float64, descending, not negative.
        counts: `(m,)` float64, how many eigenvalues each value stands for; 1 from a dense kernel.
        dim: number of rows of the kernel. Counts may add up to more: what lies beyond `dim` is zero.
        leave_one_out: of an estimate, the spectra that it would give without each of its probes in turn.
        matvecs: products with the kernel that were spent.
    """

    values: Tensor
    counts: Tensor
    dim: int
    leave_one_out: tuple[KernelSpectrum, ...] = ()
    matvecs: int = 0

    @classmethod
    def from_eigenvalues(cls, eigenvalues: Tensor) -> KernelSpectrum:
        """From all eigenvalues, in any order; negative ones of the size of rounding are set to zero."""
        if eigenvalues.ndim != 1 or not len(eigenvalues):
            raise InputError(f"Eigenvalues are a nonempty vector (n,), got shape {tuple(eigenvalues.shape)}.")
        values = _without_negative(eigenvalues).sort(descending=True).values
        return cls(values, torch.ones_like(values), len(values))

    @property
    def trace(self) -> float:
        """Sum of the eigenvalues."""
        return float((self.counts * self.values).sum())

    @property
    def max(self) -> float:
        """The largest eigenvalue."""
        return float(self.values[0])

    @property
    def mean(self) -> float:
        """The trace over the number of rows."""
        return self.trace / self.dim

    @property
    def median(self) -> float:
        """The middle eigenvalue; the mean of the two middle ones when their number is even."""
        places = torch.tensor([(self.dim - 1) // 2 + 0.5, self.dim // 2 + 0.5], dtype=torch.float64)
        found = torch.searchsorted(self.counts.cumsum(0), places, right=True).clamp_max(len(self.values) - 1)
        return float(self.values[found].mean())

    @property
    def effective_rank(self) -> float:
        """exp of the entropy of the eigenvalues as a distribution: `exp(-sum_j p_j log p_j)`, `p_j = s_j / trace`.

        Between 1 and the rank, which it is when all nonzero eigenvalues are equal (Roy and Vetterli 2007).
        """
        shares = self._shares()
        return math.exp(-float((self.counts * torch.xlogy(shares, shares)).sum())) if self.max > 0 else 0.0

    @property
    def stable_rank(self) -> float:
        """`trace / max = |Phi|_F^2 / |Phi|_2^2` for features with `K = Phi Phi^T`; between 1 and the rank."""
        return self.trace / self.max if self.max > 0 else 0.0

    @property
    def participation_ratio(self) -> float:
        """`trace^2 / sum_j s_j^2`; between 1 and the rank, never above the effective rank."""
        return 1 / float((self.counts * self._shares().square()).sum()) if self.max > 0 else 0.0

    def trace_ratio(self, k: int) -> float:
        """T_k, the share of the trace that the k largest eigenvalues hold; never decreasing in k, 1 from the rank on."""
        if k < 0:
            raise InputError(f"A trace ratio is over the k >= 0 largest eigenvalues, not {k}.")
        if self.max == 0:
            return 1.0
        before = self.counts.cumsum(0) - self.counts
        taken = torch.minimum(self.counts, (k - before).clamp_min(0))
        return min(float((taken * self._shares()).sum()), 1.0)

    def ratio(self, j: int) -> float:
        """The j-th largest eigenvalue over the largest, counted from 1; 0 for the kernel of zero."""
        if not 1 <= j <= self.dim:
            raise InputError(f"Eigenvalues are counted from 1 to {self.dim}, not {j}.")
        place = torch.searchsorted(self.counts.cumsum(0), torch.tensor(j - 0.5, dtype=torch.float64))
        return float(self.values[place]) / self.max if self.max > 0 else 0.0

    def summary(self, ks: Iterable[int] = PAPER_TRACE_RATIOS) -> dict[str, float]:
        """All numbers by name: max, mean, median, trace, the three ranks, and `T_k` for the given k below the size."""
        names = ("max", "mean", "median", "trace", "effective_rank", "stable_rank", "participation_ratio")
        ratios = {f"T_{k}": self.trace_ratio(k) for k in ks if k < self.dim}
        return {name: getattr(self, name) for name in names} | ratios

    def standard_error(self, ks: Iterable[int] = PAPER_TRACE_RATIOS) -> dict[str, float]:
        """One standard deviation of every number of `summary`, by the jackknife over probes; 0 for a dense kernel.

        NaN for the median: the jackknife says nothing about quantiles.
        """
        chosen = tuple(ks)
        if not self.leave_one_out:
            return dict.fromkeys(self.summary(chosen), 0.0)
        found = [spectrum.summary(chosen) for spectrum in self.leave_one_out]
        samples = torch.tensor([list(row.values()) for row in found], dtype=torch.float64)
        spread = (samples - samples.mean(0)).square().sum(0) * (len(samples) - 1) / len(samples)
        return dict(zip(found[0], spread.sqrt().tolist(), strict=True)) | {"median": math.nan}

    def _shares(self) -> Tensor:
        """Eigenvalues over the trace; divided by the largest first, so that none of it overflows or vanishes."""
        relative = self.values / self.values[0]
        return relative / (self.counts * relative).sum()


def kernel_spectrum(kernel: AnyKernel, center: str | None = None) -> KernelSpectrum:
    """Spectrum of a dense kernel, decomposed in float64.

    Args:
        kernel: a matrix `(n, n)`, or a tangent kernel `(c, n, c, n)`, whose rows are all outputs of all examples.
        center: None, `"per_output"` (the paper's choice for its spectra) or `"global"`; a plain matrix has one output.

    Returns:
        A `KernelSpectrum` of all `c n` eigenvalues: all zero where centring leaves no more than the rounding of the
        kernel as it was given. Cost: `9 (c n)^3`.

    Raises:
        NumericsError: the kernel has a negative eigenvalue beyond rounding, so it is not a kernel.
    """
    found = centred(kernel_data(kernel), center)
    values = safe_eigh(found.matrix())[0]
    # The rounding of the kernel as it was given bounds what a negative eigenvalue may be, not that of the decomposition.
    return KernelSpectrum.from_eigenvalues(_without_negative(values, 100 * found.tolerance(values)).cpu() * found.unit)


def estimate_spectrum(
    kernel: MatrixFree,
    *,
    top: int = 40,
    probes: int = 16,
    steps: int = 32,
    generator: torch.Generator | None = None,
) -> KernelSpectrum:
    """Spectrum of a kernel that is too large to store, from products alone.

    Lanczos finds the `top` eigenpairs; the rest, `(I - V V^T) K (I - V V^T)`, is seen through the Lanczos quadratures of
    random sign vectors (Ubaru, Chen and Saad 2017). Trace and square norm are unbiased; `max`, the stable rank's
    denominator and T_k's numerator up to `k = top` are exact to the tolerance of Lanczos; `standard_error` has the rest.

    Args:
        kernel: a symmetric matrix on functions that can be multiplied, e.g. `NTK(..., representation=FMatImplicit)`,
            centred or not.
        top: eigenpairs found one by one.
        probes: sign vectors for the rest, at least 2.
        steps: Lanczos steps per probe.
        generator: source of randomness.

    Returns:
        A `KernelSpectrum`. Cost: a few `top` products and `probes * steps` more; memory about `4 top` vectors.
    """
    if top < 1 or probes < 2:
        raise InputError(f"At least 1 top eigenpair and 2 probes are needed, not top={top} and probes={probes}.")
    with kernel.frozen():
        return _estimated(kernel, top, probes, steps, generator)


def _estimated(
    kernel: MatrixFree, top: int, probes: int, steps: int, generator: torch.Generator | None
) -> KernelSpectrum:
    example = kernel._example()
    kind: dict[str, Any] = {"dtype": example.dtype, "device": example.device, "generator": generator}
    found = lanczos(kernel._product, kernel.dim, min(top, kernel.dim), **kind)
    if not found.converged:
        raise NumericsError(f"The top {top} eigenpairs did not converge ({found.message}): ask for fewer.")
    largest = _without_negative(found.eigenvalues).cpu()
    if len(largest) == kernel.dim:
        return KernelSpectrum(largest, torch.ones_like(largest), kernel.dim, matvecs=found.matvecs)

    def rest(rows: Tensor) -> Tensor:
        def outside(x: Tensor) -> Tensor:
            return x - (x @ found.eigenvectors.t()) @ found.eigenvectors

        return outside(kernel._product(outside(rows)))

    seen = lanczos_quadrature(rest, kernel.dim, probes, steps, **kind)
    everyone = torch.arange(probes)
    parts = tuple(_joined(largest, seen, everyone[everyone != left], kernel.dim) for left in range(probes))
    whole = _joined(largest, seen, everyone, kernel.dim)
    return KernelSpectrum(whole.values, whole.counts, kernel.dim, parts, found.matvecs + seen.matvecs)


def _joined(largest: Tensor, seen: Quadrature, probes: Tensor, dim: int) -> KernelSpectrum:
    """The top eigenvalues and, for the rest, the mean of the probes' measures; no node lies above the last of the top."""
    nodes = seen.nodes[probes].flatten().clamp(0, float(largest[-1]))
    order = nodes.argsort(descending=True)
    counts = (seen.weights[probes] * (dim / len(probes))).flatten()[order]
    values = torch.cat([largest, nodes[order]])
    return KernelSpectrum(values, torch.cat([torch.ones_like(largest), counts]), dim)


def _without_negative(values: Tensor, tolerance: float | None = None) -> Tensor:
    """Eigenvalues in float64, with negative ones set to zero down to the tolerance, by default rounding of their dtype."""
    if not bool(torch.isfinite(values).all()):
        raise NumericsError("The kernel has non-finite eigenvalues; check the kernel.")
    if tolerance is None:
        tolerance = 100 * rounding_rtol(values.dtype, len(values)) * float(values.abs().max())
    if float(values.min()) < -tolerance:
        raise NumericsError(
            f"The eigenvalue {float(values.min()):.3g} beside {float(values.max()):.3g} is negative beyond rounding: "
            "spectrum statistics are for positive semi-definite kernels."
        )
    return values.double().clamp_min(0)
