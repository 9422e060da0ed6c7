"""Networks of every kind with a batch, and explicit derivatives of them in float64."""

import torch
from torch import Tensor, nn

from tangentlab.models import MLP, ResNet


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = (
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, activation="gelu"),
            nn.Linear(4, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


class Words(nn.Module):
    """Embedding whose padding row has no gradient, and a head tied to it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(7, 4, padding_idx=0), nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).tanh().mean(1))


class Detached(nn.Module):
    """A branch that is not differentiated; forward mode alone would not notice."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.head, self.scale = nn.Linear(3, 4), nn.Linear(4, 2), None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.branch(x)
        with torch.no_grad():
            scale = hidden.norm(dim=1, keepdim=True) if self.scale is None else self.scale
        return self.head(hidden.tanh() * scale)


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, *, temperature: float) -> dict[str, Tensor]:
        return {"logits": self.layer(x).tanh() / temperature}


def with_norm(activation: str = "relu") -> nn.Module:
    """Batch norms whose statistics are not those of a fresh layer."""
    model = ResNet((1, 1), 3, base=2, activation=activation)
    for _ in range(3):
        model(2 * torch.randn(8, 3, 8, 8) + 1)
    return model


def with_instance_norm(first: nn.Module, channels: int = 3) -> nn.Module:
    norm = nn.InstanceNorm1d(channels, affine=True)
    return nn.Sequential(first, norm, nn.Tanh(), nn.Conv1d(channels, 2, 3), nn.Flatten())


def partly_frozen() -> nn.Module:
    model = MLP((3, 5, 2), "tanh")
    model.layers[0].bias.requires_grad_(False)
    return model


CASES = {
    "mlp": (lambda: MLP((3, 5, 2), "tanh"), lambda: torch.randn(6, 3)),
    "relu": (lambda: MLP((3, 9, 2), "relu"), lambda: torch.randn(6, 3)),
    "one output": (lambda: nn.Sequential(MLP((3, 5, 1), "tanh"), nn.Flatten(0)), lambda: torch.randn(6, 3)),
    "batch norm": (with_norm, lambda: torch.randn(3, 3, 8, 8)),
    "smooth batch norm": (lambda: with_norm("tanh"), lambda: torch.randn(3, 3, 8, 8)),
    "lstm": (Recurrent, lambda: torch.randn(4, 3, 3)),
    "attention": (Attention, lambda: torch.randn(4, 3, 4)),
    "padding and ties": (Words, lambda: torch.randint(0, 7, (5, 4))),
    "no_grad inside": (Detached, lambda: torch.randn(5, 3)),
    "frozen": (partly_frozen, lambda: torch.randn(6, 3)),
    "layer norm first": (lambda: nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2), nn.Tanh()), lambda: torch.randn(5, 3)),
    "instance norm": (lambda: with_instance_norm(nn.Conv1d(2, 3, 1)), lambda: torch.randn(4, 2, 5)),
    "instance norm first": (lambda: with_instance_norm(nn.Identity(), 2), lambda: torch.randn(4, 2, 5)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), lambda: torch.randn(5, 3)),
}


def case(name: str) -> tuple[nn.Module, Tensor]:
    """A network in train mode (as users have it) in float64, and a batch."""
    torch.manual_seed(0)
    build, batch = CASES[name]
    model, x = build().double(), batch()
    return model, x.double() if x.is_floating_point() else x


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def dense_jacobian(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """f (*shape) and J (*shape, d) by one backward pass per number, in eval mode."""
    mode = model.training
    output = model.eval()(x)
    rows = []
    for number in output.flatten():
        grads = torch.autograd.grad(number, list(parameters(model).values()), retain_graph=True, materialize_grads=True)
        rows.append(torch.cat([grad.flatten() for grad in grads]))
    model.train(mode)
    return output.detach(), torch.stack(rows).reshape(*output.shape, -1)


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors.values()])


@torch.no_grad()
def displace(linear: nn.Module, scale: float = 0.3, seed: int = 1) -> Tensor:
    """Random displacement; its flat vector."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in linear.displacements().values():
        parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return flat(linear.displacements())
