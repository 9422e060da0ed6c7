"""Networks that take derivatives in their forward, or ask whether gradients are on, with data and plain derivatives."""

import torch
from torch import Tensor, nn

from tests.engine.truth import dense_jacobian


class ForceField(nn.Module):
    """Forces on three particles in a plane: minus the gradient of an energy that depends on their distances."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 7), nn.SiLU(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        where = x.view(-1, 3, 2)
        distances = (where - where.roll(1, 1)).square().sum(2)
        return -torch.autograd.grad(self.energy(distances).sum(), x, create_graph=True)[0]


class Burgers(nn.Module):
    """The residual u_t + u u_x - 0.1 u_xx of a network u(t, x), as one output."""

    def __init__(self) -> None:
        super().__init__()
        self.u = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        u = self.u(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope[:, 1].sum(), x, create_graph=True)
        return slope[:, :1] + u * slope[:, 1:] - 0.1 * bend[:, 1:]


class AsksForTheMode(nn.Module):
    """Gives its forces where gradients are on, and zeros to those who only look, as some potentials do."""

    def __init__(self) -> None:
        super().__init__()
        self.force = ForceField()

    def forward(self, x: Tensor) -> Tensor:
        return self.force(x) if torch.is_grad_enabled() else torch.zeros_like(x)


KINDS = {"force field": (ForceField, 6), "residual": (Burgers, 2), "asks for the mode": (AsksForTheMode, 6)}


def caught(kind: str, examples: int = 5) -> tuple[nn.Module, Tensor]:
    """A network in float64 and a batch for it."""
    make, size = KINDS[kind]
    torch.manual_seed(len(kind))
    return make().double(), torch.randn(examples, size, dtype=torch.float64)


def moved(model: nn.Module, scale: float = 0.1) -> None:
    """Another place in the space of parameters."""
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += scale * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)).double()


def kernel_matrix(model: nn.Module, x: Tensor) -> Tensor:
    """J J^T, rows ordered by outputs, then examples."""
    rows = dense_jacobian(model, x).flatten(0, 1)
    return rows @ rows.t()


def second_derivative(model: nn.Module, x: Tensor, direction: Tensor) -> Tensor:
    """v^T H v of every output, as the outputs are shaped, by two plain backward passes each."""
    parameters = list(model.parameters())
    parts = [part.view_as(p) for part, p in zip(direction.split([p.numel() for p in parameters]), parameters)]
    outputs = model(x)
    found = []
    for value in outputs.flatten():
        grads = torch.autograd.grad(value, parameters, create_graph=True, materialize_grads=True)
        slope = sum((grad * part).sum() for grad, part in zip(grads, parts))
        bends = torch.autograd.grad(slope, parameters, retain_graph=True, materialize_grads=True)
        found.append(sum((bend * part).sum() for bend, part in zip(bends, parts)))
    return torch.stack(found).view_as(outputs)
