"""Neural anisotropy directions: the input directions that a network's tangent kernel sees best, from its mixed derivative.

For Gaussian inputs and the linear function `g_u(x) = u^T x` the alignment with the tangent kernel is `|A u|^2` with
`A = E_x[ d^2 f / d theta d x ]`, `(parameters, inputs)` (theorem 1 of the paper on linearized networks). So the right
singular vectors of A, in the order of its singular values, are the directions from the easiest to the hardest. A is
never stored: its products are backward passes through one retained graph of first derivatives.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tangentlab.engine.forward_mode import plain_kernels
from tangentlab.engine.network import Network, evaluated, grad_mode, require_finite
from tangentlab.engine.snapshot import untouched
from tangentlab.errors import InputError, ModelError
from tangentlab.linalg import lanczos

_KINKED = (
    "relu leaky_relu rrelu_with_noise _prelu_kernel hardtanh hardsigmoid hardswish threshold softshrink hardshrink abs "
    "maximum minimum max_pool1d max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d"
).split()
_CLIPPING = "clamp clamp_min clamp_max".split()
"""Operations of torch with kinks; clipping counts where it clips (`F.normalize` keeps its norms above 0 by it)."""


@dataclass(frozen=True)
class AnisotropyDirections:
    """Directions in input space, the one that the network aligns with best first.

    Attributes:
        singular_values: `(k,)` descending; their squares are the alignments of `u_j^T x` for Gaussian x.
        directions: `(k, *input_shape)` unit vectors.
        message: how they were found.
    """

    singular_values: Tensor
    directions: Tensor
    message: str

    @property
    def alignments(self) -> Tensor:
        """s_j^2, `(k,)`."""
        return self.singular_values.square()

    def spectra(self) -> Tensor:
        """Magnitudes of the centred 2-d discrete Fourier transform over the last two axes of every direction."""
        return torch.fft.fftshift(torch.fft.fft2(self.directions), dim=(-2, -1)).abs()


class _Kinks(TorchDispatchMode):
    """The names of operations with kinks that run inside, by modules, functions or methods."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        name = function.overloadpacket.__name__.rstrip("_")
        before = arguments[0].clone() if name in _CLIPPING else None
        result = function(*arguments, **(options or {}))
        if name in _KINKED or (before is not None and not torch.equal(before, result)):
            self.found.add(name)
        return result


class MixedDerivative:
    """`A = mean over points x of d^2 f / d theta d x`, `(parameters, inputs)`, through its products.

    Two graphs of first derivatives are kept; every product is one backward pass through one of them, and both are
    transposes of each other because second derivatives commute. `f` is one
    output of the network.
    """

    def __init__(self, model: nn.Module, points: Tensor, output: int = 0) -> None:
        self.network = Network.of(model)
        if points.ndim < 2 or not points.is_floating_point():
            raise InputError(f"The points are (examples, *input_shape) of a real dtype, got {tuple(points.shape)}.")
        self.input_shape = tuple(points.shape[1:])
        self.inputs, self.parameters = points[0].numel(), self.network.layout.numel
        with grad_mode(), untouched(model), plain_kernels():
            self._x = points.detach().clone().requires_grad_()
            outputs = self.network(self._x).flatten(1)
            if not 0 <= output < outputs.shape[1]:
                raise InputError(f"The network has outputs 0 to {outputs.shape[1] - 1}, {output} was asked for.")
            value = outputs[:, output].mean()
            self._theta: list[Tensor] = list(self.network.parameters().values())
            options: dict[str, Any] = {"create_graph": True, "allow_unused": True, "materialize_grads": True}
            (by_inputs,) = torch.autograd.grad(value, [self._x], **options)
            self._by_inputs = by_inputs.flatten(1).sum(0)
            self._by_theta = torch.autograd.grad(value, self._theta, **options)
        if not self._by_inputs.requires_grad:
            raise ModelError(
                "The derivative in the inputs does not depend on the parameters: there is nothing to decompose."
            )

    def mv(self, rows: Tensor) -> Tensor:
        """`A v` for rows `(vectors, inputs)`: `(vectors, parameters)`."""
        return torch.stack([self._pull([self._by_inputs], [row], self._theta, flat=True) for row in rows])

    def rmv(self, rows: Tensor) -> Tensor:
        """`A^T u` for rows `(vectors, parameters)`: `(vectors, inputs)`, summed over the points."""
        return torch.stack([self._transposed(row) for row in rows])

    def _transposed(self, row: Tensor) -> Tensor:
        tangents = self.network.layout.unflatten(row)
        cotangents = [tangents[name] for name in self.network.parameters()]
        return self._pull(list(self._by_theta), cotangents, [self._x], flat=False).flatten(1).sum(0)

    def _pull(self, results: list[Tensor], cotangents: list[Tensor], leaves: list[Tensor], flat: bool) -> Tensor:
        used = [(r, c.reshape(r.shape)) for r, c in zip(results, cotangents, strict=True) if r.requires_grad]
        with plain_kernels():
            grads = torch.autograd.grad(
                [r for r, _ in used],
                leaves,
                [c for _, c in used],
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        return torch.cat([grad.flatten() for grad in grads]) if flat else grads[0]


def anisotropy_directions(
    model: nn.Module,
    points: Tensor,
    k: int | None = None,
    *,
    output: int = 0,
    dtype: torch.dtype = torch.float64,
    generator: torch.Generator | None = None,
) -> AnisotropyDirections:
    """The k leading anisotropy directions of `model` (all by default), from its mixed derivative averaged over points.

    Args:
        model: in evaluation mode, with a smooth activation: the second derivatives of a ReLU leave out its kinks.
        points: `(examples, *input_shape)`; `torch.zeros(1, *shape)` for the derivative at 0, data for their average.
        k: how many.
        output: which output.
        dtype: of the computation, on a copy of the model; squares of singular values ask for float64.
        generator: of the starting vectors.

    Lanczos on `A^T A`, dense when k is a large part of the inputs. Cost: two backward passes through first derivatives
    per product, and about 2 k products, or one per input.
    """
    twin = copy.deepcopy(model).to(dtype)
    with untouched(twin), _Kinks() as kinks:
        evaluated(lambda: twin(points[:1].to(dtype)))
    if kinks.found:
        raise ModelError(
            f"{', '.join(sorted(kinks.found))} of torch has no second derivative at its kinks, so the mixed derivative is not "
            "that of the averaged gradient: use a smooth activation such as nn.GELU and average pooling, or MixedDerivative "
            "for what is left without the kinks."
        )
    mixed = MixedDerivative(twin, points.to(dtype), output)
    wanted = mixed.inputs if k is None else k
    if not 1 <= wanted <= mixed.inputs:
        raise InputError(f"The argument k must be between 1 and {mixed.inputs}, the number of inputs, not {k}.")
    start = generator if generator is not None else torch.Generator().manual_seed(0)
    found = lanczos(
        lambda rows: torch.cat([mixed.rmv(mixed.mv(row[None])) for row in rows]),
        mixed.inputs,
        wanted,
        dtype=dtype,
        device=points.device,
        generator=start,
    )
    require_finite(found.eigenvalues, "The singular values of the mixed derivative")
    values = found.eigenvalues.clamp_min(0).sqrt()
    return AnisotropyDirections(values, found.eigenvectors.reshape(-1, *mixed.input_shape), found.message)


def gradient_directions(
    make_model: Callable[[int], nn.Module],
    point: Tensor,
    draws: int,
    k: int | None = None,
    *,
    output: int = 0,
) -> AnisotropyDirections:
    """The older definition: principal components of the input gradient at one point over random initializations.

    Args:
        make_model: draw number to a freshly initialized network in evaluation mode.
        point: `input_shape`.
        draws: initializations; at most that many components are found.
        k: how many components.
        output: which output.

    Uncentred: the gradient has mean 0 over symmetric initializations. Cost: one backward pass per draw. The singular
    values are those of the gradients as rows over `sqrt(draws)`.
    """
    if draws < 1:
        raise InputError(f"The argument draws is at least 1, not {draws}.")
    gradients = []
    for draw in range(draws):
        model = make_model(draw)
        network = Network.of(model)
        with grad_mode(), untouched(model):
            x = point[None].detach().clone().requires_grad_()
            (found,) = torch.autograd.grad(network(x).flatten(1)[0, output], x)
        gradients.append(found.flatten())
    rows = torch.stack(gradients).double()
    _, singular, right = torch.linalg.svd(rows / draws**0.5, full_matrices=False)
    count = len(singular) if k is None else k
    if not 1 <= count <= len(singular):
        raise InputError(f"The argument k must be between 1 and {len(singular)} for {draws} draws, not {k}.")
    directions = right[:count].reshape(-1, *point.shape)
    return AnisotropyDirections(singular[:count], directions, f"principal components of {draws} input gradients")
