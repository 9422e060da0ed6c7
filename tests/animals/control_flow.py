"""In-place operations, calls by keyword, control flow that depends on the data or on the size of the batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.animals.base import NO_FORM, animal, images


@animal(images(5, 3))
@animal(images(5, 6, 3), name="InPlaceReLU-sequence")
class InPlaceReLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.relu, self.head = nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.fc(x)))


@animal(images(4, 2, 5, 5))
class InPlaceEverywhere(nn.Module):
    """Assignments to parts of a layer's output, in-place arithmetic after it, an in-place activation after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.conv(x)
        hidden[:, 0] = 2 * hidden[:, 1]
        hidden = self.norm(hidden.mul_(0.5)).relu_()
        out = self.head(hidden.mean((2, 3)))
        out[:, 1] *= 2
        return out


@animal(images(4, 2, 6))
class KeywordCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.rms, self.fc = nn.Conv1d(2, 3, 3), nn.GroupNorm(1, 3), nn.RMSNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(input=self.rms(x=self.norm(input=self.conv(input=x)).tanh()))


@animal(images(5, 3), fallback=dict.fromkeys(["a.weight", "a.bias", "b.weight", "b.bias"], "no axis"))
class DataDependentControlFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.a(row).tanh() if row.sum() > 0 else self.b(row) for row in x])


@animal(images(5, 3), fallback=dict.fromkeys(["fc.weight", "fc.bias", "head.weight", "head.bias"], "no axis"))
class BatchSizeDependentControlFlow(nn.Module):
    """Large batches go through the layer in two parts, small ones at once; the function is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.cat([self.fc(x[:2]), self.fc(x[2:])]) if len(x) > 3 else self.fc(x)
        return self.head(hidden.tanh())


@animal(images(4, 3), fallback={"offset": NO_FORM})
class FixedBatchSize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.offset = nn.Linear(3, 2), nn.Parameter(torch.randn(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.offset


@animal(images(4, 3))
@animal(images(2, 3), name="Squeezed-two")
class Squeezed(nn.Module):
    """An output without trailing axis, and without any for a single example."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).squeeze()


@animal(images(4, 3), fallback={"slope.weight": NO_FORM})
class Checkpointed(nn.Module):
    """Activation checkpointing without reentry: the backward runs a part of the forward, hooks and books included, again."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.slope, self.head, self.runs = nn.Linear(3, 4), nn.PReLU(4), nn.Linear(4, 2), 0
        self.register_buffer("seen", torch.zeros(()))

    def hidden(self, x: Tensor) -> Tensor:
        self.runs += 1
        self.seen += 1
        return self.slope(self.fc(x)).tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.hidden, x, use_reentrant=False))


@animal(images(4, 3))
class NoGradRegion(nn.Module):
    """One call of the layer under no_grad, one detached, one that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.fc(x).tanh()
        return self.head(target * self.fc(x) + self.fc(2 * x).detach())


@animal(images(4, 3), fallback={"scale": NO_FORM})
class Bookkeeper(nn.Module):
    """Writes attributes, replaces and updates buffers and grows a list in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.scale, self.log, self.calls = nn.Linear(3, 2), nn.Parameter(torch.ones(())), [], 0
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        out = self.fc(x) * self.scale
        self.last, self.calls, self.count = out, self.calls + 1, self.count + 1
        self.log.append(out)
        self.mean.add_(out.detach().mean(0))
        return out
