"""`Task`: two variables whose mutual information is known, with a sampler; and tasks that are made of other tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from tangentlab.errors import InputError

Pair = tuple[Tensor, Tensor]


class Task(ABC):
    """Variables x and z with a known `I(X; Z)`.

    Attributes:
        name: for tables.
        x_features: entries of an x.
        z_features: entries of a z.
        value: the mutual information in nats, by a closed form or by quadrature to at least nine digits.
    """

    name: str
    x_features: int
    z_features: int
    value: float

    def sample(self, count: int, generator: Generator, dtype: torch.dtype | None = None) -> Pair:
        """`count` independent pairs, `(count, x_features)` and `(count, z_features)`; drawn in double precision, then cast."""
        if count < 1:
            raise InputError(f"{self.name}: {count} pairs cannot be drawn; ask for 1 or more.")
        x, z = self.draw(count, generator)
        wanted = dtype or torch.get_default_dtype()
        return x.to(wanted), z.to(wanted)

    @abstractmethod
    def draw(self, count: int, generator: Generator) -> Pair:
        """Pairs in double precision."""

    @abstractmethod
    def log_ratio(self, x: Tensor, z: Tensor) -> Tensor:
        """The pointwise `log p(x, z) - log p(x) - log p(z)`, `(n,)` in double precision; its mean over pairs is `value`."""

    def __repr__(self) -> str:
        return f"<{self.name}: I = {self.value:.4f} nats>"


class Invertible(ABC):
    """A map that can be undone, so that it leaves mutual information as it is. Points are rows."""

    name: str

    @abstractmethod
    def forward(self, points: Tensor) -> Tensor:
        """`(n, d)` to `(n, d')`."""

    @abstractmethod
    def inverse(self, points: Tensor) -> Tensor:
        """`(n, d')`, points of the image, to `(n, d)`."""

    def features(self, features: int) -> int:
        """d' for given d."""
        return features


class Transformed(Task):
    """`I(f(X); g(Z)) = I(X; Z)` for invertible f and g.

    Args:
        base: the task of x and z.
        x_map, z_map: f and g; None leaves the variable as it is.
        name: for tables; by default made of the names of the parts.
    """

    def __init__(
        self, base: Task, x_map: Invertible | None = None, z_map: Invertible | None = None, name: str | None = None
    ) -> None:
        self.base, self.x_map, self.z_map = base, x_map, z_map
        names = list(dict.fromkeys(map_.name for map_ in (x_map, z_map) if map_ is not None))
        self.name = name or f"{' and '.join(names) or 'identity'} of {base.name}"
        self.x_features = x_map.features(base.x_features) if x_map else base.x_features
        self.z_features = z_map.features(base.z_features) if z_map else base.z_features
        self.value = base.value

    def draw(self, count: int, generator: Generator) -> Pair:
        x, z = self.base.draw(count, generator)
        return self.x_map.forward(x) if self.x_map else x, self.z_map.forward(z) if self.z_map else z

    def log_ratio(self, x: Tensor, z: Tensor) -> Tensor:
        x, z = x.double(), z.double()
        return self.base.log_ratio(
            self.x_map.inverse(x) if self.x_map else x, self.z_map.inverse(z) if self.z_map else z
        )


class Joined(Task):
    """Independent tasks side by side, `([x_1, x_2, ...], [z_1, z_2, ...])`: their informations add."""

    def __init__(self, parts: Sequence[Task], name: str | None = None) -> None:
        if not parts:
            raise InputError("A joined task needs at least one part.")
        self.parts = tuple(parts)
        self.name = name or " + ".join(part.name for part in parts)
        self.x_features = sum(part.x_features for part in parts)
        self.z_features = sum(part.z_features for part in parts)
        self.value = sum(part.value for part in parts)

    def draw(self, count: int, generator: Generator) -> Pair:
        pairs = [part.draw(count, generator) for part in self.parts]
        return torch.cat([x for x, _ in pairs], 1), torch.cat([z for _, z in pairs], 1)

    def log_ratio(self, x: Tensor, z: Tensor) -> Tensor:
        xs = x.split([part.x_features for part in self.parts], 1)
        zs = z.split([part.z_features for part in self.parts], 1)
        return torch.stack([part.log_ratio(*pair) for part, *pair in zip(self.parts, xs, zs, strict=True)]).sum(0)


class Repeated(Task):
    """`([x, x], [z, h(z)])`: a function of what is there already adds nothing (data processing).

    Args:
        base: the task of x and z.
        function: h, from `(n, z_features)` to `(n, features)`.
        features: of h; as many as z has by default.
    """

    def __init__(self, base: Task, function: Callable[[Tensor], Tensor], features: int | None = None) -> None:
        self.base, self.function = base, function
        self.name = f"{base.name} and a function of it"
        self.x_features = 2 * base.x_features
        self.z_features = base.z_features + (features or base.z_features)
        self.value = base.value

    def draw(self, count: int, generator: Generator) -> Pair:
        x, z = self.base.draw(count, generator)
        return torch.cat([x, x], 1), torch.cat([z, self.function(z)], 1)

    def log_ratio(self, x: Tensor, z: Tensor) -> Tensor:
        return self.base.log_ratio(x[:, : self.base.x_features], z[:, : self.base.z_features])
