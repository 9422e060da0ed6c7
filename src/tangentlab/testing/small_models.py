"""Small classifiers, one per way in which parameters are used, with their data and their Kronecker layers by hand."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor, nn

EXAMPLES, CLASSES = 7, 3
SPLITS = {"one batch": (7,), "uneven batches": (3, 1, 3)}
DTYPES = (torch.float64, torch.float32)


@dataclass(frozen=True)
class Kron:
    """A layer on which KFAC is defined: names of weight and bias (either may be missing) and the modules that use it."""

    weight: str | None
    bias: str | None
    modules: tuple[str, ...]


@dataclass(frozen=True)
class ModelRecipe:
    """How to build a model and its inputs, and its Kronecker layers; parameters outside them have no such structure."""

    build: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], Tensor]
    kron: tuple[Kron, ...]
    all_kron: bool = True


class Branches(nn.Module):
    """Embedding or linear layer applied at every position, averaged, then classified."""

    def __init__(self, first: nn.Module, width: int) -> None:
        super().__init__()
        self.first, self.last = first, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh().mean(1))


class Tied(nn.Module):
    """Two layers with one weight and a bias each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, CLASSES)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).tanh()).tanh())


class Bare(nn.Module):
    """A parameter without axes and one without a layer around a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.3)), nn.Parameter(torch.randn(3))
        self.last = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.last((x + self.shift).tanh())


def mlp() -> nn.Sequential:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, CLASSES))


def grouped_convolution() -> nn.Module:
    """Three layers deep: the kernel of a shallower one would not change if outputs were swapped."""
    convolution = nn.Conv2d(2, 4, 2, stride=(1, 2), padding=1, groups=2)
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(convolution, nn.Tanh(), pooled, nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, CLASSES))


def norms() -> nn.Module:
    """Layer norm and batch norm in evaluation mode, with affine parameters and statistics of their own."""
    trained, running = nn.LayerNorm(4), nn.BatchNorm1d(4)
    model = nn.Sequential(nn.Linear(3, 4), trained, nn.Tanh(), running, nn.Linear(4, CLASSES, bias=False))
    with torch.no_grad():
        for part in (*running.buffers(), running.weight, trained.weight, trained.bias):
            if part.is_floating_point():
                part.uniform_(0.5, 1.5)
    return model.eval()


def wide() -> nn.Module:
    """More inputs than twice the examples: the input factor can be kept as its few rows."""
    return nn.Sequential(nn.Linear(16, 2), nn.Tanh(), nn.Linear(2, CLASSES))


def frozen_bias() -> nn.Module:
    """The first bias is not trained."""
    model = mlp()
    model[0].bias.requires_grad_(False)
    return model


def bias_first() -> nn.Module:
    """The bias is registered before the weight, so the flat order is not that of the layer's matrix."""
    model = mlp()
    first = model[0]._parameters
    first["weight"] = first.pop("weight")
    return model


def tokens(generator: torch.Generator) -> Tensor:
    """Every token has its own number of occurrences, so that the eigenvectors of the counts are unique."""
    words = torch.tensor([0] * 2 + [1] * 3 + [2] * 5 + [3] * 7 + [4] * 11)
    return words[torch.randperm(28, generator=generator)].reshape(EXAMPLES, 4)


def gaussian(*shape: int) -> Callable[[torch.Generator], Tensor]:
    """Inputs from a normal distribution, (EXAMPLES, *shape)."""
    return lambda generator: torch.randn(EXAMPLES, *shape, generator=generator, dtype=torch.float64)


_MLP = (Kron("0.weight", "0.bias", ("0",)), Kron("2.weight", "2.bias", ("2",)))
_LAST = Kron("last.weight", "last.bias", ("last",))

RECIPES = {
    "mlp": ModelRecipe(mlp, gaussian(3), _MLP),
    "grouped convolution": ModelRecipe(
        grouped_convolution,
        gaussian(2, 3, 4),
        tuple(Kron(f"{layer}.weight", f"{layer}.bias", (layer,)) for layer in "035"),
    ),
    "norms": ModelRecipe(
        norms, gaussian(3), (Kron("0.weight", "0.bias", ("0",)), Kron("4.weight", None, ("4",))), all_kron=False
    ),
    "embedding": ModelRecipe(
        lambda: Branches(nn.Embedding(5, 3, padding_idx=0), 3), tokens, (Kron("first.weight", None, ("first",)), _LAST)
    ),
    "tied weights": ModelRecipe(
        Tied,
        gaussian(3),
        (
            Kron("first.weight", None, ("first", "second")),
            Kron(None, "first.bias", ("first",)),
            Kron(None, "second.bias", ("second",)),
            _LAST,
        ),
    ),
    "sequence": ModelRecipe(
        lambda: Branches(nn.Linear(3, 4), 4), gaussian(5, 3), (Kron("first.weight", "first.bias", ("first",)), _LAST)
    ),
    "wide": ModelRecipe(wide, gaussian(16), _MLP),
    "frozen bias": ModelRecipe(frozen_bias, gaussian(3), (Kron("0.weight", None, ("0",)), _MLP[1])),
    "bias first": ModelRecipe(bias_first, gaussian(3), _MLP),
    "bare parameters": ModelRecipe(Bare, gaussian(3), (_LAST,), all_kron=False),
}
ALL = tuple(RECIPES)
KRONECKER = tuple(name for name, recipe in RECIPES.items() if recipe.all_kron)


@dataclass(frozen=True)
class Case:
    """A model with data in one dtype, cut into batches."""

    name: str
    dtype: torch.dtype = torch.float64
    split: str = "one batch"

    @property
    def recipe(self) -> ModelRecipe:
        return RECIPES[self.name]

    @cached_property
    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return self.recipe.build().to(self.dtype)

    @cached_property
    def inputs(self) -> Tensor:
        x = self.recipe.inputs(torch.Generator().manual_seed(5))
        return x.to(self.dtype) if x.is_floating_point() else x

    @cached_property
    def targets(self) -> Tensor:
        return torch.arange(EXAMPLES) % CLASSES

    @property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """(inputs, targets) batch by batch."""
        sizes = SPLITS[self.split]
        return list(zip(self.inputs.split(sizes), self.targets.split(sizes), strict=True))

    def __str__(self) -> str:
        return f"{self.name}, {str(self.dtype).removeprefix('torch.')}, {self.split}"


@cache
def case_of(name: str, dtype: torch.dtype = torch.float64, split: str = "one batch") -> Case:
    """The one case of these settings, so that its model is built once."""
    return Case(name, dtype, split)


def cases(names: tuple[str, ...]) -> list[Case]:
    """Every model in every dtype and both ways of batching."""
    return [case_of(name, dtype, split) for name in names for dtype in DTYPES for split in SPLITS]
