"""Eigenfunctions of the tangent kernel on data: as tasks, as a basis, and what they say about a function.

On n examples with the Gram matrix `K v_j = s_j v_j` the expectation over the data is the mean, and

    phi_j(x_a) = sqrt(n) v_j[a],   lambda_j = s_j / n,   E[phi_i phi_j] = delta_ij,   K(x, x') = sum_j lambda_j phi_j phi_j.

With several outputs a function has a value per output, and the mean is over examples of the sum over outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tangentlab.engine.batches import Batches, plain_batch
from tangentlab.engine.memory import memory_budget
from tangentlab.errors import InputError
from tangentlab.kernels.eigenpairs import GramPairs, gram_eigenpairs, landmark_eigenpairs, product_eigenpairs
from tangentlab.linalg import rounding_rtol
from tangentlab.metrics import NTK
from tangentlab.objects.fmat import FMatDense
from tangentlab.objects.fmat_implicit import FMatImplicit

Method = Literal["auto", "gram", "nystrom", "lanczos"]


@dataclass(frozen=True)
class LemmaOne:
    """`|f|_K^2 >= |f|_2^4 / alpha(f)`: the kernel norm, the alignment and the mean square of a function.

    `tightness` is `|f|_2^4 / (alpha |f|_K^2)`, at most 1, and 1 only for multiples of one eigenfunction (or of several
    with one eigenvalue); `gap` is the difference of the two sides.
    """

    norm_squared: Tensor
    alignment: Tensor
    mean_square: Tensor

    @property
    def bound(self) -> Tensor:
        """`|f|_2^4 / alpha(f)`."""
        return self.mean_square.square() / self.alignment

    @property
    def gap(self) -> Tensor:
        """Left side minus right side, never negative but for rounding."""
        return self.norm_squared - self.bound

    @property
    def tightness(self) -> Tensor:
        """Right side over left side."""
        return self.bound / self.norm_squared


@dataclass(frozen=True)
class Eigenfunctions:
    """The k leading eigenfunctions of a kernel on n examples.

    Attributes:
        eigenvalues: `(k,)` of the Gram matrix, descending; divided by n they are those of the kernel on the data.
        vectors: `(k, outputs * n)` unit eigenvectors as rows, output-major as in `FMat.matrix`.
        residual_norms: `(k,)` of the pairs.
        outputs: per example.
        message: how they were found.
    """

    eigenvalues: Tensor
    vectors: Tensor
    residual_norms: Tensor
    outputs: int = 1
    message: str = ""

    @classmethod
    def of_pairs(cls, pairs: GramPairs, outputs: int = 1) -> Eigenfunctions:
        """From eigenpairs of a Gram matrix."""
        return cls(pairs.values, pairs.vectors, pairs.residual_norms, outputs, pairs.message)

    def __len__(self) -> int:
        return len(self.eigenvalues)

    @property
    def examples(self) -> int:
        """n."""
        return self.vectors.shape[1] // self.outputs

    @property
    def kernel_eigenvalues(self) -> Tensor:
        """lambda_j = s_j / n, `(k,)`."""
        return self.eigenvalues / self.examples

    @property
    def functions(self) -> Tensor:
        """phi_j at the examples, `(k, outputs * n)`, orthonormal in the mean over examples."""
        return self.vectors * self.examples**0.5

    @property
    def rank(self) -> int:
        """How many eigenvalues are above the rounding of a null space; functions beyond may be arbitrary.

        `rounding_rtol` has a margin of four over the largest rounding found; eigenfunctions are good down to that.
        """
        noise = rounding_rtol(self.vectors.dtype, self.vectors.shape[1]) / 4 * float(self.eigenvalues[0])
        return int((self.eigenvalues > noise).sum())

    def leading(self, k: int) -> Eigenfunctions:
        """The first k of them."""
        if not 1 <= k <= len(self):
            raise InputError(f"The argument k must be between 1 and {len(self)}, the eigenfunctions at hand, not {k}.")
        parts = {name: getattr(self, name)[:k] for name in ("eigenvalues", "vectors", "residual_norms")}
        return replace(self, **parts)

    def _known(self) -> Eigenfunctions:
        """Those that are more than rounding."""
        if not self.rank:
            raise InputError("The kernel is zero: it has no norm, and its eigenfunctions have no values elsewhere.")
        return self if self.rank == len(self) else self.leading(self.rank)

    def labels(self, index: int) -> Tensor:
        """Function `index` as a task: 1 where it is positive, else 0, `(n,)` of int64, or `(n, outputs)`."""
        if not 0 <= index < len(self):
            raise InputError(f"There are eigenfunctions 0 to {len(self) - 1}, {index} was asked for.")
        positive = (self.vectors[index] > 0).long()
        return positive if self.outputs == 1 else positive.reshape(self.outputs, -1).T

    def binarization(self) -> Tensor:
        """`<sign(v_j), v_j> / sqrt(outputs n)`, `(k,)`: the cosine that binarizing keeps; sqrt(2 / pi) for a Gaussian."""
        return self.vectors.abs().sum(1) / self.vectors.shape[1] ** 0.5

    def extend(self, cross_kernel: FMatDense | Tensor) -> Tensor:
        """phi_j at new points, `(k, m)`: `phi_j(x) = sqrt(n) sum_a K(x, x_a) v_j[a] / s_j` (Nystrom).

        cross_kernel: `(m, outputs * n)`, or `NTK(model, new, old)`.
        """
        if self._known() is not self:
            raise InputError(
                f"The eigenvalues of functions {self.rank} to {len(self) - 1} are rounding, so these have no values at new "
                f"points: use .leading({self.rank})."
            )
        matrix = cross_kernel if isinstance(cross_kernel, Tensor) else cross_kernel.matrix()
        return self.examples**0.5 * (self.vectors @ matrix.T) / self.eigenvalues[:, None]

    def coefficients(self, values: Tensor) -> Tensor:
        """E[phi_j f], `(..., k)`, of functions `(..., outputs * n)`."""
        if values.shape[-1] != self.vectors.shape[1]:
            raise InputError(f"A function has {self.vectors.shape[1]} values here, not {values.shape[-1]}.")
        return values.to(self.vectors) @ self.vectors.T / self.examples**0.5

    def missing_energy(self, values: Tensor) -> Tensor:
        """The share of `|f|^2` that lies outside of the span of these eigenfunctions, `(...)`."""
        kept = self.coefficients(values).square().sum(-1) * self.examples
        return (1 - kept / values.to(self.vectors).square().sum(-1)).clamp_min(0)

    def alignment(self, values: Tensor) -> Tensor:
        """`alpha(f) = sum_j lambda_j E[phi_j f]^2`, `(...)`: with fewer than all eigenfunctions, a lower bound."""
        return (self.coefficients(values).square() * self.kernel_eigenvalues).sum(-1)

    def norm_squared(self, values: Tensor, *, truncated: bool = False) -> Tensor:
        """`|f|_K^2 = sum_j E[phi_j f]^2 / lambda_j`, `(...)`.

        A function that leaves the span of the known eigenfunctions is refused unless `truncated` asks for its part in
        the span: what lies outside has the largest norm of all.
        """
        known = self._known()
        missing = known.missing_energy(values)
        if not truncated and bool((missing > (1e-8 if self.vectors.dtype == torch.float64 else 1e-3)).any()):
            raise InputError(
                f"{float(missing.max()):.3g} of the function's energy is outside of the span of the {len(known)} "
                "eigenfunctions with an eigenvalue above rounding: compute more of them, or pass truncated=True for the norm "
                "of its part in the span."
            )
        return (known.coefficients(values).square() / known.kernel_eigenvalues).sum(-1)

    def lemma_one(self, values: Tensor) -> LemmaOne:
        """Both sides of `|f|_K^2 >= |f|_2^4 / alpha(f)` for functions in the span."""
        mean_square = values.to(self.vectors).square().sum(-1) / self.examples
        return LemmaOne(self.norm_squared(values), self.alignment(values), mean_square)

    def energy_concentration(self, labels: Tensor, k: int | None = None) -> Tensor:
        """`|Phi y| / |y|` with Phi the first k unit eigenvectors, `(...)`; `chance_concentration` of random labels.

        Its square is the share of the labels' energy in the leading k-dimensional eigenspace.
        """
        known = self if k is None else self.leading(k)
        length = labels.to(self.vectors).norm(dim=-1)
        return known.coefficients(labels).norm(dim=-1) * self.examples**0.5 / length


def chance_concentration(k: int, n: int) -> float:
    """`sqrt(k / n)`: the root mean square energy concentration of random directions."""
    if not 0 < k <= n:
        raise InputError(f"The argument k must be between 1 and n = {n}, not {k}.")
    return float((k / n) ** 0.5)


def eigenfunctions(
    model: nn.Module,
    loader: Any,
    k: int,
    *,
    method: Method = "auto",
    landmarks: int | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Eigenfunctions:
    """The k leading eigenfunctions of the tangent kernel of `model` on data.

    Args:
        model: in evaluation mode; for one logit of several pass `outputs=index`.
        loader: the data in a fixed order and in batches, as for `tangentlab.NTK`.
        k: how many; at most the number of examples times outputs.
        method: "gram" holds the Gram matrix, 4 n^2 bytes in float32 (3.6 GB for n = 30,000); "lanczos" multiplies with a
            kernel that is never stored, exact as well, a few k passes over the data; "nystrom" is approximate, from the
            kernel between all points and `landmarks` random ones; "auto" is "gram" where it fits, else "lanczos".
        landmarks: m of "nystrom", between k and n; memory 8 n m bytes in float32.
        generator: of the landmarks and of starting vectors.
        options: further arguments of `tangentlab.NTK` (outputs, function, layers, forward, progress).
    """
    if method not in ("auto", "gram", "nystrom", "lanczos"):
        raise InputError(f"The argument method is 'auto', 'gram', 'nystrom' or 'lanczos', not {method!r}.")
    if (landmarks is not None) != (method == "nystrom"):
        raise InputError("The argument landmarks= belongs to method='nystrom', which needs it.")
    loader = Batches(loader, ordered=True)
    if method == "nystrom":
        return _by_landmarks(model, loader, k, landmarks or 0, generator, options)
    if method != "gram":
        implicit: FMatImplicit = NTK(model, loader, representation=FMatImplicit, **options)
        if not 1 <= k <= implicit.dim:
            raise InputError(f"The argument k must be between 1 and {implicit.dim}, the size of the kernel, not {k}.")
        if method == "lanczos" or implicit.gram_bytes() > memory_budget():
            return Eigenfunctions.of_pairs(product_eigenpairs(implicit, k, generator), implicit.outputs)
    kernel: FMatDense = NTK(model, loader, **options)
    return Eigenfunctions.of_pairs(gram_eigenpairs(kernel.matrix(), k, generator=generator), kernel.outputs)


def _by_landmarks(
    model: nn.Module,
    loader: Batches,
    k: int,
    landmarks: int,
    generator: torch.Generator | None,
    options: dict[str, Any],
) -> Eigenfunctions:
    """All points against random ones, by the exact eigenpairs of the approximation that they make."""
    batches = (plain_batch(batch) for batch in loader)
    parts = [batch[0] if isinstance(batch, tuple | list) else batch for batch in batches]
    if not all(isinstance(part, Tensor) for part in parts):
        raise InputError(
            "The argument method='nystrom' needs batches of tensors, (inputs) or (inputs, targets): use 'lanczos' here."
        )
    inputs = torch.cat(parts)
    if not k <= landmarks <= len(inputs):
        raise InputError(f"The argument landmarks must be between k = {k} and n = {len(inputs)}, not {landmarks}.")
    chosen = torch.randperm(len(inputs), generator=generator)[:landmarks].sort().values
    columns = NTK(model, loader, [(part,) for part in inputs[chosen].split(500)], **options)
    outputs = columns.outputs
    rows = torch.cat([chosen + output * len(inputs) for output in range(outputs)])
    matrix = columns.matrix()
    core = matrix[rows]
    return Eigenfunctions.of_pairs(landmark_eigenpairs(matrix, (core + core.T) / 2, k), outputs)
