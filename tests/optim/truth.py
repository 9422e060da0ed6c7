"""The slow, obvious truth of natural-gradient steps: per-example loops, dense matrices, numpy."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
Array = np.ndarray


def tiny_mlp(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """4-3-3 with tanh and biases."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).to(dtype)


def tiny_conv(seed: int = 0, bias: bool = True) -> nn.Sequential:
    """A convolution with padding and stride, then a linear layer."""
    torch.manual_seed(seed)
    conv = nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=bias)
    return nn.Sequential(conv, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 3)).double()


def data(*shape: int, classes: int = 3, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Normal inputs and labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (shape[0],), generator=generator)


def backward(model: nn.Module, x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Fresh gradients of the cross entropy."""
    model.zero_grad()
    loss = F.cross_entropy(model(x), y, reduction=reduction)
    loss.backward()
    return loss.detach()


def flat_gradient(model: nn.Module) -> Array:
    """All gradients in the order of `named_parameters()`."""
    return np.concatenate([p.grad.detach().flatten().numpy() for p in model.parameters()])


def layer_gradient(module: nn.Module) -> Array:
    """[W | b] as a matrix, conv kernels flattened."""
    weight = module.weight.grad.detach().flatten(1).numpy()
    bias = getattr(module, "bias", None)
    return weight if bias is None else np.concatenate([weight, bias.grad.detach().numpy()[:, None]], 1)


def per_example_gradients(model: nn.Module, x: Tensor, y: Tensor) -> Array:
    """(N, d), one backward per example."""
    rows = []
    for one, label in zip(x, y):
        grads = torch.autograd.grad(F.cross_entropy(model(one[None]), label[None]), list(model.parameters()))
        rows.append(np.concatenate([g.flatten().numpy() for g in grads]))
    return np.stack(rows)


def factors(model: nn.Module, module: nn.Module, x: Tensor, y: Tensor) -> list[tuple[Array, Array]]:
    """Per example: homogeneous inputs (T, columns) and gradients of the loss in the outputs (T, rows)."""
    found: list[tuple[Array, Array]] = []
    for one, label in zip(x, y):
        seen: list[tuple[Tensor, Tensor]] = []

        def note(_, args, out, seen=seen):
            # The copy is what goes on, so that nothing later can write into the layer's own output.
            seen.append((args[0].detach().clone(), out))
            return out.clone()

        handle = module.register_forward_hook(note)
        loss = F.cross_entropy(model(one[None]), label[None])
        handle.remove()
        ((inputs, out),) = seen
        (grad,) = torch.autograd.grad(loss, out)
        found.append((_rows(module, inputs), grad.flatten(2)[0].T.numpy() if grad.ndim == 4 else grad.numpy()))
    return found


def _rows(module: nn.Module, inputs: Tensor) -> Array:
    if isinstance(module, nn.Conv2d):
        inputs = F.unfold(inputs, module.kernel_size, padding=module.padding, stride=module.stride)[0].T
    rows = inputs.numpy()
    return rows if module.bias is None else np.concatenate([rows, np.ones((len(rows), 1))], 1)


def kronecker_factors(found: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """A = 1/N sum_n sum_t a a^T and B = 1/(N T) sum_n sum_t g g^T."""
    examples, rows = len(found), sum(len(a) for a, _ in found)
    return sum(a.T @ a for a, _ in found) / examples, sum(g.T @ g for _, g in found) / rows


def example_matrices(found: list[tuple[Array, Array]]) -> Array:
    """Per-example gradients (N, rows, columns)."""
    return np.stack([g.T @ a for a, g in found])


def spectral(a: Array, b: Array) -> tuple[Array, Array, Array, Array]:
    """(S_A, U_A, S_B, U_B)."""
    return *np.linalg.eigh(a), *np.linalg.eigh(b)
