"""Networks from decisions: a start that fits the kind of data, a stack of blocks, and an end with few outputs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from tests.trial.blocks import flow, layers, mixing, routing, sharing, strange
from tests.trial.blocks.base import BLOCKS, FEATURES, MAPS, MIXES, ODD, ROUNDS, STATEFUL, Apply, Shape, Site
from tests.trial.choices import Choices, NoSuchCase

assert all((flow, layers, mixing, routing, sharing, strange))  # they fill BLOCKS

TOKENS = 4
LARGEST_OUTPUT = 6
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Stack(nn.Module):
    """The blocks one after the other; what comes out is a tensor, or an object that holds it."""

    def __init__(self, blocks: list[nn.Module], returns: str) -> None:
        super().__init__()
        self.blocks, self.returns = nn.ModuleList(blocks), returns

    def forward(self, x: Tensor) -> Any:
        for block in self.blocks:
            x = block(x)
        return {"tensor": x, "dict": {"logits": x}, "tuple": (x, None)}[self.returns]


@dataclass(frozen=True)
class Blueprint:
    """A network as decided: its kinds of blocks, their traits, the shape of one input and of one output."""

    model: nn.Module
    kinds: tuple[str, ...]
    traits: frozenset[str]
    input_shape: Shape
    output_shape: Shape
    tokens: bool
    dtype: torch.dtype
    likelihood: str


def build(choices: Choices) -> Blueprint:
    """The network of the decisions, always the same for the same record."""
    torch.manual_seed(choices.number("seed", 0, 2**16))
    start = choices.pick("start", ["vectors", "sequences", "tokens", "bag", "signals", "images", "volumes"], _STARTS)
    input_shape, site, blocks = _start(start, choices.within("input"))
    kinds, traits = [], frozenset({ODD} if start == "bag" else ())  # torch has no differential of a bag
    for part in choices.parts("blocks", 0, 5, _LENGTHS):
        site.choices = part
        options = [b for b in BLOCKS.values() if b.fits(site)]
        kind = part.pick("kind", [b.kind for b in options], [b.weight for b in options])
        made = BLOCKS[kind].build(site)
        if prod(made.shape) > 128 or 0 in made.shape:
            raise NoSuchCase("too large")
        site.earlier.append((made.module, site.form, site.shape, made.shape))
        site.shape, site.form = made.shape, made.form
        blocks.append(made.module)
        kinds.append(kind)
        traits |= BLOCKS[kind].traits
    if STATEFUL in traits and len({id(one) for one in blocks}) < len(blocks):
        traits |= {MIXES}  # the second call starts from what the first one saw of all examples
    end = choices.within("end")
    _finish(site, blocks, end)
    likelihood = end.pick("likelihood", likelihoods(site.shape))
    if likelihood == "log_softmax":
        blocks.append(nn.LogSoftmax(-1))
    if end.chance("in single precision", 0.03):  # as language models give their logits
        blocks.append(Apply(lambda m, x: x.float()))
        traits |= {ROUNDS}
    model = Stack(blocks, end.pick("returns", ["tensor", "dict", "tuple"], [20, 1, 1]))
    dtype = DTYPES[choices.pick("dtype", list(DTYPES), [40, 6, 2, 1])]
    _prepare(model, dtype, choices)
    tokens = start in ("tokens", "bag")
    return Blueprint(model, tuple(kinds), traits, input_shape, site.shape, tokens, dtype, likelihood)


_STARTS = [4, 3, 2, 0.7, 1.5, 2, 0.3]
_LENGTHS = [1, 4, 5, 4, 2, 1]


def _start(kind: str, o: Choices) -> tuple[Shape, Site, list[nn.Module]]:
    """Shape of one input, the site of the first block, and the layers before it."""
    width = o.number("width", 1, 4)
    if kind == "vectors":
        return (width,), Site((width,), FEATURES, o), []
    if kind == "sequences":
        shape = (o.number("steps", 1, 4), width)
        return shape, Site(shape, FEATURES, o), []
    if kind in ("tokens", "bag"):
        steps = o.number("steps", 1, 4)
        options: dict[str, Any] = {"padding_idx": o.pick("padding", [None, 0])}
        if kind == "bag":
            layer: nn.Module = nn.EmbeddingBag(TOKENS, width, mode=o.pick("mode", ["mean", "sum", "max"]), **options)
            return (steps,), Site((width,), FEATURES, o), [layer]
        layer = nn.Embedding(TOKENS, width, sparse=o.chance("sparse", 0.2), **options)
        return (steps,), Site((steps, width), FEATURES, o), [layer]
    dims, largest = {"signals": (1, 6), "images": (2, 4), "volumes": (3, 2)}[kind]
    shape = (o.number("channels", 1, 3), *(o.number(f"size {axis}", 2, largest) for axis in range(dims)))
    return shape, Site(shape, MAPS, o), []


def _finish(site: Site, blocks: list[nn.Module], o: Choices) -> None:
    """Pooling and a head with few outputs, or what there is if it is small."""
    if (
        prod(site.shape) <= LARGEST_OUTPUT
        and o.chance("open", 0.3)
        and any(True for b in blocks for _ in b.parameters())
    ):
        return
    if len(site.shape) > 1 or site.form == MAPS:
        _pool(site, blocks, o.pick("pool", ["mean", "last", "flat"]))
    width = o.number("outputs", 1, 3)
    embedding = next((b for b in blocks if isinstance(b, nn.Embedding) and b.embedding_dim == site.width), None)
    if embedding is not None and o.chance("tied head"):
        head = nn.Linear(site.width, TOKENS, bias=False)
        head.weight = embedding.weight
        width = TOKENS
    else:
        head = nn.Linear(site.width, width, bias=o.pick("bias", [True, False], [4, 1]))
    blocks.append(head)
    site.shape = (width,)
    if o.chance("grid", 0.15):  # outputs of several axes
        rows = o.number("rows", 1, 2)
        blocks.append(Apply(lambda m, x: torch.stack([x, *[x.sin()] * (rows - 1)], 1)))
        site.shape = (rows, width)
    if o.chance("no axis", 0.05) and site.shape == (1,):
        blocks.append(Apply(lambda m, x: x.squeeze(-1)))
        site.shape = ()


def _pool(site: Site, blocks: list[nn.Module], how: str) -> None:
    """To (features,)."""
    if how == "flat" and prod(site.shape) <= 12:
        blocks.append(nn.Flatten())
        site.shape = (prod(site.shape),)
    elif site.form == MAPS:
        blocks.append(Apply(lambda m, x: x.flatten(2).mean(2)))
        site.shape = site.shape[:1]
    else:
        last = how == "last"
        blocks.append(Apply(lambda m, x: x[:, -1] if last else x.mean(1)))
        site.shape = site.shape[-1:]
    site.form = FEATURES


def likelihoods(shape: Shape) -> list[str]:
    """Those that are defined for outputs of a shape."""
    names = ["regression", "binary"]
    if shape and shape[-1] > 1:
        names += ["classification", "log_softmax"]
    if len(shape) > 1 and shape[0] > 1:
        names += ["segmentation"]
    return names


def _prepare(model: nn.Module, dtype: torch.dtype, choices: Choices) -> None:
    """Type, mode, random values everywhere, and some frozen parameters (never all)."""
    model.to(dtype).eval()
    for module in model.modules():
        if getattr(module, "stays_in_train_mode", False):
            module.train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(0.8 * torch.randn(parameter.shape).to(dtype) + ("norm" in name))
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.copy_(torch.rand(buffer.shape).to(dtype) + 0.5)
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable or sum(p.numel() for p in trainable) == 0:
        raise NoSuchCase("nothing to train")
    if choices.chance("frozen", 0.15):
        for index in {choices.number(f"frozen {k}", 0, len(trainable) - 1) for k in range(2)} - {len(trainable) - 1}:
            trainable[index].requires_grad_(False)
