"""Every registered rule, and strangers', in every representation and every preconditioner, against plain autograd."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from tangentlab import (
    FIM,
    NTK,
    PMatBlockDiag,
    PMatDense,
    PMatDiag,
    PMatEKFAC,
    PMatImplicit,
    PMatKFAC,
    PMatLowRank,
    PMatMixed,
)
from tangentlab.engine.coverage import coverage
from tangentlab.errors import StructureError
from tangentlab.layers import registry
from tangentlab.layers.lookup import LookupSum
from tangentlab.objects.pmat import PMatQuasiDiag
from tangentlab.optim import make_preconditioner
from tangentlab.testing.truth import fisher, jacobian
from tests.layers import strangers
from tests.layers.standins import Conv1D, LoRALinear

EPSILON = 0.1


class Two(nn.Module):
    """A layer of two inputs in a chain: on its input, and on the input turned around."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[..., :-1], x.flip(-1))


class Attention(nn.Module):
    """Attention in a chain.

    memory: None for self-attention, "one" where keys and values come from elsewhere, "two" from two places.
    """

    def __init__(
        self, memory: str | None = None, batch_first: bool = True, weights: bool = False, **options: Any
    ) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first, **options)
        self.memory, self.weights, self.width = memory, weights, options.get("kdim", 4)

    def forward(self, x: Tensor) -> Tensor:
        first = self.attention.batch_first
        query = x if first else x.transpose(0, 1)
        keys = query if self.memory is None else torch.cat([query, query.sin()], -1)[..., : self.width].cos()
        values = keys.exp() if self.memory == "two" else keys
        found, _ = self.attention(query, keys, values, need_weights=self.weights)
        return found if first else found.transpose(0, 1)


@dataclass(frozen=True)
class Subject:
    """A layer in a chain, the shape of an input, and whether all its parameters have a Kronecker approximation."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    kronecker: bool = True
    tokens: int = 0

    def network(self, examples: int | None = None) -> tuple[nn.Module, Tensor]:
        """The layer before a linear classifier, in eval mode and float64, and an input."""
        with torch.random.fork_rng():
            torch.manual_seed(3)
            shape = (examples or self.shape[0], *self.shape[1:])
            x = torch.randint(self.tokens, shape) if self.tokens else torch.randn(shape, dtype=torch.float64)
            layer = self.make().double().eval()
            for parameter in layer.parameters():
                nn.init.normal_(parameter, std=0.7)
            head = nn.Linear(layer(x)[0].numel(), 3).double()
            return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), head).eval(), x


SUBJECTS = {
    "Linear": Subject(lambda: nn.Linear(4, 3), (4, 4)),
    "Linear, positions": Subject(lambda: nn.Linear(4, 3), (4, 3, 4)),
    "Bilinear": Subject(lambda: Two(nn.Bilinear(2, 3, 2)), (4, 3)),
    "Bilinear, positions": Subject(lambda: Two(nn.Bilinear(2, 3, 2, bias=False)), (4, 3, 3)),
    "Conv1D": Subject(lambda: Conv1D(3, 4), (4, 4)),
    "Conv1D, positions": Subject(lambda: Conv1D(3, 4), (4, 3, 4)),
    "LoRA": Subject(lambda: LoRALinear(4, 3, rank=2), (4, 3, 4)),
    "Embedding": Subject(lambda: nn.Embedding(6, 3, padding_idx=1), (4, 4), tokens=6),
    "Embedding, one position": Subject(lambda: nn.Embedding(6, 3), (4,), tokens=6),
    "Conv1d": Subject(lambda: nn.Conv1d(4, 4, 2, groups=2), (4, 4, 3)),
    "Conv2d": Subject(lambda: nn.Conv2d(2, 3, 2, padding=1), (3, 2, 3, 2)),
    "Conv3d": Subject(lambda: nn.Conv3d(1, 2, 2), (3, 1, 2, 3, 2)),
    "ConvTranspose1d": Subject(lambda: nn.ConvTranspose1d(4, 4, 2, groups=2), (3, 4, 2)),
    "ConvTranspose2d": Subject(lambda: nn.ConvTranspose2d(2, 2, 2, stride=2), (3, 2, 2, 1)),
    "ConvTranspose3d": Subject(lambda: nn.ConvTranspose3d(1, 2, 2), (3, 1, 1, 2, 1)),
    "LayerNorm": Subject(lambda: nn.LayerNorm((2, 3)), (4, 2, 2, 3), kronecker=False),
    "RMSNorm": Subject(lambda: nn.RMSNorm(3), (4, 2, 3), kronecker=False),
    "GroupNorm": Subject(lambda: nn.GroupNorm(2, 4), (4, 4, 2), kronecker=False),
    "BatchNorm1d": Subject(lambda: nn.BatchNorm1d(3), (4, 3), kronecker=False),
    "BatchNorm2d": Subject(lambda: nn.BatchNorm2d(2), (4, 2, 2, 2), kronecker=False),
    "BatchNorm3d": Subject(lambda: nn.BatchNorm3d(2), (4, 2, 2, 1, 2), kronecker=False),
    "InstanceNorm1d": Subject(lambda: nn.InstanceNorm1d(3, affine=True), (4, 3, 3), kronecker=False),
    "InstanceNorm2d": Subject(lambda: nn.InstanceNorm2d(2, affine=True), (4, 2, 2, 2), kronecker=False),
    "InstanceNorm3d": Subject(lambda: nn.InstanceNorm3d(2, affine=True), (4, 2, 2, 1, 2), kronecker=False),
    "self-attention": Subject(lambda: Attention(), (4, 3, 4)),
    "self-attention, weights wanted": Subject(lambda: Attention(weights=True, bias=False), (4, 3, 4)),
    "self-attention, sequence first": Subject(lambda: Attention(batch_first=False), (3, 3, 4)),
    "attention to a memory": Subject(lambda: Attention("one"), (4, 3, 4)),
    "attention to two": Subject(lambda: Attention("two", bias=False), (4, 3, 4)),
    "attention of three widths": Subject(lambda: Attention("two", kdim=5, vdim=5), (4, 3, 4)),
    "stranger": Subject(lambda: strangers.OwnLinear(4, 3), (4, 3, 4)),
    "stranger without bias": Subject(lambda: strangers.OwnLinear(4, 3, bias=False), (4, 4)),
    "stranger without structure": Subject(lambda: strangers.Unstructured(4, 3), (4, 3, 4), kronecker=False),
    "stranger, careless": Subject(lambda: strangers.Careless(4, 3), (4, 3, 4), kronecker=False),
    "stranger with A and B": Subject(lambda: strangers.LowRank(4, 3), (4, 3, 4)),
    "stranger, transposed": Subject(lambda: strangers.Transposed(4, 3), (4, 4)),
}
each = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)


def test_every_registered_rule_is_among_the_subjects() -> None:
    modules = [module for subject in SUBJECTS.values() for module in subject.make().modules()]
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in map(type, modules)]
    unseen = {kind for kind in registry._RULES if not isinstance(kind, str) and kind not in map(type, modules)}
    assert {kind.__name__ for kind in unseen if kind.__module__.startswith("torch")} == set()
    assert "transformers.pytorch_utils.Conv1D" in names


@each
def test_representations_are_those_of_autograd(subject: Subject) -> None:
    model, x = subject.network()
    truth = fisher(model, x)
    table = coverage(model, x)
    assert table.structured_fraction == 1, str(table)
    for kind in (PMatDense, PMatImplicit, PMatLowRank):
        assert close(FIM(model, x, kind).to_dense(), truth)
    for kind in (PMatDiag, PMatQuasiDiag):
        assert close(FIM(model, x, kind).diag().flat, truth.diagonal())
    blocks, own = FIM(model, x, PMatBlockDiag).to_dense(), slice(len(truth) - model[3].weight.numel() - 3, None)
    assert close(blocks[own, own], truth[own, own]) and close(blocks.diagonal(), truth.diagonal())
    assert close(FIM(model, x, PMatMixed.default(kronecker=PMatEKFAC)).trace(), truth.trace())
    rows = jacobian(model, x)
    assert close(NTK(model, x).matrix(), torch.einsum("nkd,mld->knlm", rows, rows).reshape(3 * len(x), -1))


@each
def test_kronecker_factors_are_the_same_in_metrics_and_optimizers(subject: Subject) -> None:
    model, x = subject.network()
    for method, kind in (("kfac", PMatKFAC), ("ekfac", PMatEKFAC)):
        if not subject.kronecker:
            with pytest.raises(StructureError, match=r"0\."):
                FIM(model, x, kind)
            continue
        precond = preconditioned(method, model, x, curvature="exact", likelihood="classification")
        assert precond.report().share == 1
        assert close(precond.as_pmat().to_dense(), FIM(model, x, kind).to_dense())


@each
def test_preconditioners_that_are_exact_somewhere_are_those_of_autograd(subject: Subject) -> None:
    model, x = subject.network()
    rows = loss_gradients(model, x)
    F, g = rows.T @ rows / len(x), rows.mean(0)
    for method in ("diagonal", "cg", "block-diagonal", "ekfac", "kfac", "ekfac-ra", "diagonal-ra"):
        precond = preconditioned(method, model, x, **({"rtol": 1e-11, "iterations": 300} if method == "cg" else {}))
        found, groups = flat_gradient(model), [places(precond, group) for group in precond.groups]
        treated = torch.cat(groups)
        passed = [group for group in precond.passed if "batch statistics" not in precond.passed[group]]
        assert not passed
        if method == "diagonal":
            assert close(found[treated], (g / (F.diagonal() + EPSILON))[treated])
        elif method == "cg":
            assert close(found[treated], solved(F, g, treated), 1e-6)
        elif method == "block-diagonal":
            assert all(close(found[own], solved(F, g, own)) for own in groups)
        elif method == "ekfac":
            P, mask = precond.as_pmat().to_dense(), torch.zeros_like(F)
            for own in groups:
                mask[own[:, None], own] = 1
            inside = (F * mask)[treated][:, treated]
            assert close((P * P).sum(), (P * inside).sum()), "a projection of F on the diagonals in its own basis"
        else:
            assert bool(torch.isfinite(found).all()) and float(found[treated] @ g[treated]) > 0


@each
def test_of_one_example_and_one_position_kronecker_products_are_exact(subject: Subject) -> None:
    if len(subject.shape) > 2 - bool(subject.tokens) or not subject.kronecker:
        pytest.skip("several positions, or no Kronecker product")
    model, x = subject.network(examples=1)
    (row,) = loss_gradients(model, x)
    for method in ("kfac", "ekfac"):
        precond = preconditioned(method, model, x)
        F = precond.as_pmat().to_dense()
        for own in (places(precond, group) for group in precond.groups):
            assert close(F[own[:, None], own], row[own, None] * row[own])


def close(found: Tensor, truth: Tensor, rtol: float = 1e-9) -> bool:
    assert found.shape == truth.shape
    return bool((found - truth).abs().max() <= rtol * max(float(truth.abs().max()), 1e-6))


def solved(F: Tensor, g: Tensor, own: Tensor) -> Tensor:
    return torch.linalg.solve(F[own][:, own] + EPSILON * torch.eye(len(own)).double(), g[own])


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


@each
def test_separate_blocks_are_those_of_every_parameter_alone(subject: Subject) -> None:
    model, x = subject.network()
    rows = loss_gradients(model, x)
    F, g = rows.T @ rows / len(x), rows.mean(0)
    precond = preconditioned("block-diagonal", model, x, separate_weight_and_bias=True)
    found = flat_gradient(model)
    assert all(len(group.names) == 1 for group in precond.groups)
    assert all("batch statistics" in reason for reason in precond.passed.values())
    assert all(close(found[own], solved(F, g, own)) for own in (places(precond, group) for group in precond.groups))


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).logsumexp(1).mean()


def loss_gradients(model: nn.Module, x: Tensor) -> Tensor:
    """(N, d), one backward pass per example."""
    parameters = trainable(model)
    found = [torch.autograd.grad(loss(model, one[None]), parameters) for one in x]
    return torch.stack([torch.cat([g.flatten() for g in grads]) for grads in found])


def preconditioned(method: str, model: nn.Module, x: Tensor, **options: Any) -> Any:
    """The preconditioner after a step."""
    model.zero_grad()
    precond = make_preconditioner(method, model, damping=EPSILON, **options)
    loss(model, x).backward()
    assert precond.step()
    precond.remove()
    return precond


def flat_gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in trainable(model)])


def places(precond: Any, group: Any) -> Tensor:
    """Where the parameters of a group are in the flat order."""
    every = torch.arange(precond.layout.numel)
    return torch.cat([every[precond.layout.slices[name]] for name in group.names])


def test_a_form_that_was_found_in_gradients_survives_a_restart() -> None:
    model, x = SUBJECTS["stranger, transposed"].network()
    first = preconditioned("ekfac", model, x)
    fresh = make_preconditioner("ekfac", model, damping=EPSILON)
    fresh.load_state_dict(first.state_dict())
    for precond in (first, fresh):
        precond.observer.attach()
    model.zero_grad()
    loss(model, x).backward()
    before = [p.grad.clone() for p in model.parameters()]
    steps = []
    for precond in (first, fresh):
        for p, grad in zip(model.parameters(), before, strict=True):
            p.grad.copy_(grad)
        precond.step()
        steps.append(flat_gradient(model))
    assert torch.equal(*steps)


def test_metrics_of_a_lookup_write_no_one_hot_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: LookupSum) -> Tensor:
        raise AssertionError("one-hot vectors were written")

    monkeypatch.setattr(LookupSum, "left", property(refuse))
    for name in ("Embedding", "Embedding, one position"):
        model, x = SUBJECTS[name].network()
        for kind in (PMatDense, PMatBlockDiag, PMatDiag, PMatQuasiDiag, PMatLowRank, PMatKFAC, PMatEKFAC, PMatImplicit):
            FIM(model, x, kind).trace()
        assert NTK(model, x).trace() > 0 and NTK(model, x, outputs="trace").trace() > 0
        for method in ("diagonal", "cg", "block-diagonal", "ekfac", "kfac", "ekfac-ra"):
            preconditioned(method, model, x)


def test_an_attention_that_is_watched_computes_the_same_bits_and_leaves_nothing_behind() -> None:
    model, x = SUBJECTS["attention to two"].network()
    plain = model(x)
    precond = make_preconditioner("ekfac", model)
    copy = deepcopy(model)
    assert torch.equal(model(x), plain)
    assert torch.equal(copy(x), plain)
    with pytest.raises((AssertionError, RuntimeError)):
        model(x[..., :3])
    assert _get_current_function_mode_stack() == []
    attention = model[0].attention

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    handle = attention.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(x)
    handle.remove()
    assert torch.equal(model(x), plain) and _get_current_function_mode_stack() == []
    precond.remove()
    assert not attention._forward_hooks and not attention._forward_pre_hooks
