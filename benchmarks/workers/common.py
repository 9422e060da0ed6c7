"""What the torch workers share: the model and data of a task, parameter vectors, the arrays to compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import fingerprint, nets
from benchmarks.jobs import PRODUCTS
from benchmarks.workers.base import Task


@dataclass
class Problem:
    """A task as torch objects; `drawn` are labels drawn once from the model's own distribution.

    `layers` are those that Kronecker factors are asked for.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    drawn: Tensor
    layers: list[str]

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.x)

    @property
    def params(self) -> dict[str, Tensor]:
        """Detached parameters by name, as `torch.func` wants them."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    @property
    def factored(self) -> dict[str, nn.Parameter]:
        """The parameters of `layers`."""
        owners = set(self.layers)
        return {name: p for name, p in self.model.named_parameters() if name.rpartition(".")[0] in owners}


def problem(task: Task) -> Problem:
    """Build the task's network and data, with the wanted number of threads."""
    torch.set_num_threads(task.threads)
    model = nets.build(task.net, task.options, task.weights)
    arrays = (torch.from_numpy(array) for array in (task.x, task.y, task.drawn))
    return Problem(model, *arrays, nets.factored_layers(task.net, model))


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, summed over examples and positions."""
    return cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")


def versions(*packages: str) -> dict[str, str]:
    """Installed versions, torch's among them."""
    return {package: version(package) for package in ("torch", *packages)}


def unflatten(flat: Tensor, like: Iterable[Tensor]) -> list[Tensor]:
    """Cut a flat vector into tensors of the given shapes, in order."""
    like = list(like)
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like)]


def flatten(parts: Iterable[Tensor]) -> Tensor:
    """Concatenate tensors into one flat vector."""
    return torch.cat([part.detach().reshape(-1) for part in parts])


def vectors(task: Task) -> list[Tensor]:
    """The shared parameter vectors of the Fisher-vector products, flat, in the order of the parameters."""
    return [torch.from_numpy(fingerprint.vector(task.size, seed)) for seed in range(1, PRODUCTS + 1)]


def probe(problem: Problem) -> Tensor:
    """The shared vector with which Kronecker-factored matrices are multiplied to compare them."""
    return torch.from_numpy(fingerprint.vector(sum(p.numel() for p in problem.factored.values()), 1))


def kernel_values(kernel: Tensor) -> dict[str, np.ndarray]:
    """Arrays of a kernel `(outputs, examples, outputs, examples)`."""
    return {"kernel": kernel.detach().numpy()}


def matrix_values(product: Tensor, trace: Tensor | float, norm: Tensor | float) -> dict[str, np.ndarray]:
    """Arrays of a Fisher matrix: its product with `probe`, its trace and its Frobenius norm."""
    return {
        "product": fingerprint.sketch(product.detach().numpy()),
        "trace": np.array(float(trace)),
        "norm": np.array(float(norm)),
    }


def vector_values(**flats: Tensor) -> dict[str, np.ndarray]:
    """Arrays of named long vectors."""
    return {name: fingerprint.sketch(flat.detach().numpy()) for name, flat in flats.items()}


EIGENVALUE_TOLERANCE = float(np.finfo(np.float32).eps ** (2 / 3))
"""Residual of an eigenpair relative to the largest eigenvalue."""


def eigenvalues_values(found: Sequence[float]) -> dict[str, np.ndarray]:
    """Arrays of some eigenvalues, the largest first."""
    return {"eigenvalues": np.sort(np.asarray(found, dtype=np.float64))[::-1].copy()}


def norms_values(norms: Tensor) -> dict[str, np.ndarray]:
    """Arrays of one norm per example."""
    return {"norms": norms.detach().numpy()}


def block_values(
    blocks: Iterable[tuple[Tensor, Tensor, Tensor]], vector: Tensor, parameters: Sequence[Tensor]
) -> dict[str, np.ndarray]:
    """Arrays of blocks (U_B x U_A) diag(scale) (U_B x U_A)^T, given as (U_B, U_A, scale) with the bias last in U_A.

    parameters: a weight and its bias per block, in order; `vector` is the flat one to multiply with.
    """
    parts = iter(unflatten(vector, parameters))
    products, trace, square = [], 0.0, 0.0
    for (left, right, scale), (weight, bias) in zip(blocks, zip(parts, parts)):
        matrix = torch.cat([weight.flatten(1), bias[:, None]], 1)
        image = left @ (scale * (left.T @ matrix @ right)) @ right.T
        products += [image[:, :-1], image[:, -1]]
        trace, square = trace + float(scale.sum()), square + float(scale.double().square().sum())
    return matrix_values(flatten(products), trace, square**0.5)


def gradients_values(parts: Sequence[Tensor]) -> dict[str, np.ndarray]:
    """Arrays of per-example gradients given per parameter, `(examples, *shape)` each."""
    n = len(parts[0])
    rows = [fingerprint.sketch(flatten([part[i] for part in parts]).numpy()) for i in range(n)]
    return {"gradients": np.stack(rows)}
