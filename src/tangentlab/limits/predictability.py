"""Cross-predictability: how well two random functions of a family predict each other, exactly or from samples.

`CP(P_X, P_F) = E_{F, F'} (E_X F(X) F'(X))^2` is the sum of the squared eigenvalues of the label kernel
`K(x, x') = E_F F(x) F(x')` as an operator on L2(P_X), whose trace is 1. So 1 / CP is its effective rank
(`KernelSpectrum.participation_ratio`), and its largest eigenvalue is at most sqrt(CP).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Generator, Tensor

from tangentlab.engine.memory import require_memory
from tangentlab.errors import InputError
from tangentlab.kernels.spectrum import KernelSpectrum, kernel_spectrum
from tangentlab.limits.cube import Inputs, ProductInputs, UniformInputs, chosen_inputs, input_chunks, require_enumerable
from tangentlab.limits.families import Parities, krawtchouk
from tangentlab.limits.functions import Family, Functions, Number

LARGEST_GRAM = 4096
"""Largest label kernel, over functions or over inputs, that is decomposed."""


@dataclass(frozen=True)
class CrossPredictability:
    """The cross-predictability of a family under a distribution of inputs.

    Attributes:
        value: CP, or its unbiased estimate (which may be negative when CP is small).
        lower: lower end of a confidence interval, or CP itself.
        upper: upper end.
        how: `"closed form"`, `"all functions"` or `"estimate"`.
        spectrum: eigenvalues of the label kernel; None where only CP is known.
    """

    value: float
    lower: float
    upper: float
    how: str
    spectrum: KernelSpectrum | None = None

    @property
    def exact(self) -> bool:
        """Whether the value is exact to rounding."""
        return self.how != "estimate"

    @property
    def effective_rank(self) -> float:
        """1 / CP: the number of functions that a family amounts to; infinite where the estimate is not positive."""
        return 1 / self.value if self.value > 0 else math.inf

    @property
    def largest(self) -> float:
        """lambda_max of the label kernel, or sqrt of the upper end of CP, which is never below it."""
        return self.spectrum.max if self.spectrum is not None else math.sqrt(max(self.upper, 0.0))


def cross_predictability(family: Family, inputs: Inputs | None = None, *, spectrum: bool = True) -> CrossPredictability:
    """CP exactly: by a closed form at any n, else over all functions of the family and all inputs.

    Args:
        family: P_F.
        inputs: P_X, uniform by default; closed forms are about uniform inputs, and parities on product inputs.
        spectrum: False leaves out the eigenvalues of the label kernel, which cost more than CP where they are not known.

    Raises:
        InputError: the family can neither be listed nor has a closed form: use `estimate_cross_predictability`.
        MemoryBudgetError: 2^n does not fit.
    """
    chosen = chosen_inputs(family.n, inputs)
    value = _closed_form(family, chosen)
    how = "all functions" if value is None else "closed form"
    if value is None:
        if family.size() is None:
            raise InputError(
                f"{family!r} has no closed form here and cannot be listed: use estimate_cross_predictability."
            )
        functions, weights = family.members()
        value = float(weights @ correlations(functions, chosen).square() @ weights)
    return CrossPredictability(value, value, value, how, _spectrum_at_hand(family, chosen) if spectrum else None)


def _closed_form(family: Family, inputs: Inputs) -> float | None:
    """CP by symmetry, None where it has to be computed."""
    if isinstance(inputs, ProductInputs) and isinstance(family, Parities):
        # S and S' differ in each place with probability 1/2, where the correlation gains a factor of the mean.
        return float(((1 + inputs.means.square()) / 2).prod())
    if not isinstance(inputs, UniformInputs):
        return None
    if (kernel := family.kernel_by_distance()) is not None:
        return _mean_over_distances(family.n, [k * k for k in kernel])
    closed = family.exact_predictability()
    return None if closed is None else float(closed)


def _mean_over_distances(n: int, values: Sequence[Number]) -> float:
    """`2^-n sum_d C(n, d) v_d`, exact for fractions."""
    return float(sum((math.comb(n, d) * value for d, value in enumerate(values)), Fraction(0)) / (1 << n))


def _spectrum_at_hand(family: Family, inputs: Inputs) -> KernelSpectrum | None:
    """Eigenvalues by symmetry, or of a matrix of moderate size."""
    size = family.size()
    by_distance = isinstance(inputs, UniformInputs) and family.kernel_by_distance() is not None
    moderate = size is not None and min(size, 1 << family.n) <= LARGEST_GRAM and size << family.n <= 1 << 28
    return label_spectrum(family, inputs) if by_distance or moderate else None


def label_spectrum(family: Family, inputs: Inputs | None = None) -> KernelSpectrum:
    """Eigenvalues of the label kernel K as an operator on L2(P_X), with their multiplicities; they add up to 1.

    A kernel of the Hamming distance has the parities of degree j as eigenfunctions, `C(n, j)` of them with eigenvalue
    `2^-n sum_d K(d) kappa_d(j)`, kappa the Krawtchouk polynomials: any n. Otherwise from the correlations of all
    functions of the family.
    """
    chosen = chosen_inputs(family.n, inputs)
    kernel = family.kernel_by_distance() if isinstance(chosen, UniformInputs) else None
    if kernel is None:
        return _listed_spectrum(family, chosen)
    n = family.n
    found = [
        float(sum((k * krawtchouk(n, d, j) for d, k in enumerate(kernel)), Fraction(0)) / (1 << n))
        for j in range(n + 1)
    ]
    values = torch.tensor(found, dtype=torch.float64).clamp_min(0)
    counts = torch.tensor([float(math.comb(n, j)) for j in range(n + 1)], dtype=torch.float64)
    order = values.argsort(descending=True, stable=True)
    return KernelSpectrum(values[order], counts[order], 1 << n)


def correlations(functions: Functions, inputs: Inputs | None = None) -> Tensor:
    """`E_X F_a(X) F_b(X)` of all pairs over all inputs, `(count, count)` float64.

    One product of tables, piece by piece: exact under uniform inputs. Cost: `2^n count^2`.
    """
    chosen = chosen_inputs(functions.n, inputs)
    uniform = isinstance(chosen, UniformInputs)
    require_enumerable(functions.n, 0 if uniform else 16, "The correlations of functions")
    require_memory(16 * functions.count**2, f"The correlations of {functions.count} functions", "Use fewer functions.")
    weights = None if uniform else chosen.probabilities()
    gram = torch.zeros(functions.count, functions.count, dtype=torch.float64)
    start = 0
    for chunk in input_chunks(functions.n, max(256, min(1 << 16, (1 << 28) // (8 * functions.count)))):
        values = functions(chunk)
        if weights is None:
            signs = values.float()
            gram += signs @ signs.t()  # whole numbers below 2^24
        else:
            signs = values.double()
            gram += (signs * weights[start : start + len(chunk)]) @ signs.t()
        start += len(chunk)
    return gram / (1 << functions.n) if uniform else gram


def table_correlations(tables: Tensor) -> Tensor:
    """`correlations` of given tables `(count, 2^n)` under uniform inputs, in one product."""
    require_memory(4 * tables.numel(), f"Tables of shape {tuple(tables.shape)} in float32", "Use fewer tables.")
    gram = torch.zeros(len(tables), len(tables), dtype=torch.float64)
    for piece in tables.split(1 << 20, 1):
        signs = piece.float()
        gram += signs @ signs.t()
    return gram / tables.shape[1]


def sampled_predictability(predictability: float, draws: int) -> float:
    """`E CP_m = 1 / m + (1 - 1 / m) CP` when X is one of m independent draws: what a batch of m adds to a population."""
    if draws < 1:
        raise InputError(f"A sample has at least one draw, not {draws}.")
    return 1 / draws + (1 - 1 / draws) * predictability


def estimate_cross_predictability(
    family: Family,
    inputs: Inputs | None = None,
    *,
    blocks: int = 64,
    pairs: int = 32,
    draws: int = 512,
    confidence: float = 0.95,
    generator: Generator | None = None,
) -> CrossPredictability:
    """CP without bias from samples: the mean of `(m r^2 - 1) / (m - 1)`, r the mean of F F' over m draws of X.

    Args:
        family: P_F.
        inputs: P_X, uniform by default.
        blocks: independent repetitions, each with draws of its own; the interval is Student's over them.
        pairs: of functions in each.
        draws: m.
        confidence: of the interval.
        generator: source of randomness.

    Returns:
        A `CrossPredictability`; its interval is as wide as about `1 / (m sqrt(blocks pairs))`, so that a CP far below shows
        as an upper end only. Cost: `2 blocks pairs draws` values.
    """
    if blocks < 2 or pairs < 1 or draws < 2 or not 0 < confidence < 1:
        raise InputError("An estimate needs at least 2 blocks, 1 pair, 2 draws and a confidence between 0 and 1.")
    chosen = chosen_inputs(family.n, inputs)
    means = torch.empty(blocks, dtype=torch.float64)
    for block in range(blocks):
        values = family.sample(2 * pairs, generator)(chosen.sample(draws, generator)).double()
        r = (values[:pairs] * values[pairs:]).mean(1)
        means[block] = ((draws * r.square() - 1) / (draws - 1)).mean()
    return CrossPredictability(*_interval(means, confidence), "estimate")


def _interval(values: Tensor, confidence: float) -> tuple[float, float, float]:
    """Mean and Student's interval of independent values."""
    from scipy.stats import t

    mean = float(values.mean())
    width = float(t.ppf((1 + confidence) / 2, len(values) - 1)) * float(values.std()) / math.sqrt(len(values))
    return mean, mean - width, mean + width


def data_free_accuracy(
    family: Family, inputs: Inputs | None = None, *, functions: int = 2048, generator: Generator | None = None
) -> float:
    """`1/2 + E_X |E_F F(X)| / 2`: what the best guess scores that has seen no data; 1/2 only where labels are fair coins.

    At most `1/2 + CP^(1/4) / 2`. Exact by symmetry or over all functions of the family; where neither is at hand, from
    `functions` draws over all inputs, or 4096 of them, and then too large by about `1 / (2 sqrt(functions))`.
    """
    chosen = chosen_inputs(family.n, inputs)
    means = family.mean_by_weight() if isinstance(chosen, UniformInputs) else None
    if means is not None:
        return 0.5 + _mean_over_distances(family.n, [max(mean, -mean) for mean in means]) / 2
    if family.size() is None:
        drawn = family.sample(functions, generator)
        return 0.5 + float(drawn(chosen.sample(4096, generator)).double().mean(0).abs().mean()) / 2
    drawn, weights = family.members()
    chances = chosen.probabilities()
    start, total_mean = 0, 0.0
    for chunk in input_chunks(family.n, 1 << 12):
        mean = weights @ drawn(chunk).double()
        total_mean += float(mean.abs() @ chances[start : start + len(chunk)])
        start += len(chunk)
    return 0.5 + total_mean / 2


def _listed_spectrum(family: Family, inputs: Inputs) -> KernelSpectrum:
    """From the smaller of two kernels with the same eigenvalues: over the functions, or over the inputs."""
    functions, weights = family.members()
    if min(functions.count, 1 << family.n) > LARGEST_GRAM:
        raise InputError(
            f"The label kernel of {family!r} has {min(functions.count, 1 << family.n)} rows; spectra are for up to "
            f"{LARGEST_GRAM}. CP alone is known beyond."
        )
    if functions.count <= 1 << family.n:
        roots = weights.sqrt()
        return kernel_spectrum(roots[:, None] * correlations(functions, inputs) * roots)
    table = functions.table().double() * weights.sqrt()[:, None]
    roots = inputs.probabilities().sqrt()
    return kernel_spectrum(roots[:, None] * (table.t() @ table) * roots)
