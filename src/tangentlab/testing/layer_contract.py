"""The contract of a layer rule: per-example gradients in every configuration, compared with plain autograd.

To test a layer of your own, register its rule (`tangentlab.layers.register`) and write

    class TestLowRankLinear(LayerContract):
        cases = [layer_case(LowRankLinear, 4, 3, rank=2, shape=shape) for shape in ((5, 4), (5, 6, 4))]
        refused = [(LowRankLinear(4, 3, rank=0), "rank")]   # modules without a closed form, and a word of the reason

Each case is a layer with its arguments and the shape of an input, examples first. Include every option that the rule
reads, inputs with and without positions, and a single example.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from tangentlab.engine.coverage import coverage
from tangentlab.engine.groups import local_parameter
from tangentlab.layers import OuterSum, rule_of
from tangentlab.metrics import FIM
from tangentlab.objects.pmat import PMatBlockDiag, PMatDense, PMatDiag, PMatEKFAC, PMatImplicit, PMatMixed
from tangentlab.objects.pvector import PVector
from tangentlab.testing.dense_truth import assert_close
from tangentlab.testing.truth import fisher, slices_of

COTANGENTS, CLASSES = 3, 3


@dataclass(frozen=True)
class LayerCase:
    """A layer type with its arguments, and the shape of an input (examples first).

    Attributes
    ----------
    tokens: the input consists of whole numbers below this one, for layers that look up rows.
    """

    kind: type[nn.Module]
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(hash=False)
    shape: tuple[int, ...]
    tokens: int | None = None

    def make(self, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
        """The layer in evaluation mode, with random parameters and statistics, and an input."""
        generator = torch.Generator().manual_seed(0)
        layer = self.kind(*self.arguments, **self.options).to(dtype).eval()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
            for name, buffer in layer.named_buffers():
                if name in ("running_mean", "running_var"):
                    buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
        if self.tokens is not None:
            return layer, torch.randint(self.tokens, self.shape, generator=generator)
        return layer, torch.randn(self.shape, generator=generator, dtype=torch.float64).to(dtype)

    def __str__(self) -> str:
        options = [f"{key}={value}" for key, value in self.options.items()]
        call = f"{self.kind.__name__}({', '.join([*map(str, self.arguments), *options])})"
        return f"{call} of {self.shape}".replace(" ", "")


def layer_case(
    kind: type[nn.Module], *arguments: Any, shape: tuple[int, ...], tokens: int | None = None, **options: Any
) -> LayerCase:
    """The layer `kind(*arguments, **options)` on an input of this shape."""
    return LayerCase(kind, arguments, options, shape, tokens)


def groups_of(layer: nn.Module) -> list[tuple[str, ...]]:
    """The groups in which the engine may ask for the layer's parameters."""
    rule, reason = rule_of(layer)
    assert rule is not None, reason
    own = [tuple(n for n in names if local_parameter(layer, n) is not None) for names in rule.groups]
    return [*((name,) for names in own for name in names), *(names for names in own if len(names) > 1)]


def cotangents_of(layer: nn.Module, x: Tensor) -> Tensor:
    """Random output-gradients (K, N, ...)."""
    shape = (COTANGENTS, *layer(x).shape)
    dtype = next(layer.parameters()).dtype
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def factors_of(layer: nn.Module, x: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """What the registered rule makes of them."""
    rule, reason = rule_of(layer)
    assert rule is not None, reason
    return rule.factors(layer, x, grads, group)


def true_rows(layer: nn.Module, x: Tensor, grads: Tensor, group: tuple[str, ...]) -> Tensor:
    """(K, N, numel): one backward pass per cotangent and example."""
    parameters = [layer.get_parameter(name) for name in group]
    outputs = layer(x)
    lines = [
        [torch.autograd.grad(outputs[n], parameters, grads[k, n], retain_graph=True) for n in range(len(x))]
        for k in range(len(grads))
    ]
    return torch.stack(
        [torch.stack([torch.cat([g.to_dense().flatten() for g in grads]) for grads in line]) for line in lines]
    )


def classifier_of(case: LayerCase) -> tuple[nn.Module, Tensor]:
    """The layer between its input and a linear classifier, and the input, in float64."""
    layer, x = case.make()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        head = nn.Linear(layer(x)[0].numel(), CLASSES, dtype=torch.float64)
        head.weight.data /= head.in_features**0.5
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), head).eval(), x


class LayerContract:
    """Inherited by one small class per layer family; it sets the attributes.

    Attributes
    ----------
    cases: the layer in its configurations (`layer_case`), on which the rule is compared with autograd.
    in_networks: those that are also put into a network; all unless given.
    refused: modules that have no closed form, with a part of the reason that the rule gives.
    """

    cases: ClassVar[Iterable[LayerCase]]
    in_networks: ClassVar[Iterable[LayerCase] | None] = None
    refused: ClassVar[Iterable[tuple[nn.Module, str]]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give every test its cases."""
        own = type(self)
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", list(own.cases), ids=str)
        if "networked" in metafunc.fixturenames:
            metafunc.parametrize("networked", list(own.cases if own.in_networks is None else own.in_networks), ids=str)
        if "without" in metafunc.fixturenames:
            names = [f"{type(module).__name__}: {reason}" for module, reason in own.refused]
            metafunc.parametrize("without", list(own.refused), ids=names)

    # ------------------------------------------------------------- the rule alone

    def test_rows_of_every_group_are_the_gradients_of_single_examples(self, case: LayerCase) -> None:
        layer, x = case.make()
        grads = cotangents_of(layer, x)
        for group in groups_of(layer):
            rows, truth = factors_of(layer, x, grads, group).rows(), true_rows(layer, x, grads, group)
            assert rows.shape == truth.shape
            assert (rows - truth).abs().max() <= 1e-11 * max(float(truth.abs().max()), 1)

    def test_rows_in_single_precision_stay_in_single_precision(self, networked: LayerCase) -> None:
        layer, x = networked.make(torch.float32)
        grads = cotangents_of(layer, x)
        for group in groups_of(layer):
            rows, truth = factors_of(layer, x, grads, group).rows(), true_rows(layer, x, grads, group)
            assert rows.dtype == torch.float32
            assert (rows - truth).abs().max() <= 1e-4 * max(float(truth.abs().max()), 1)

    def test_a_configuration_without_closed_form_is_refused_with_its_reason(
        self, without: tuple[nn.Module, str]
    ) -> None:
        rule, found = rule_of(without[0])
        assert rule is None
        assert without[1] in found

    # ------------------------------------------------------------- the rule in a network

    def test_in_a_network_every_parameter_takes_the_closed_form(self, networked: LayerCase) -> None:
        model, x = classifier_of(networked)
        table = coverage(model, x)
        assert table.structured_fraction == 1, str(table)

    def test_the_fisher_matrix_of_a_network_is_that_of_autograd(self, networked: LayerCase) -> None:
        model, x = classifier_of(networked)
        truth = fisher(model, x)
        F = FIM(model, x, PMatDense)
        v = PVector.ones(model)
        assert_close(F.tensor(), truth)
        assert_close(FIM(model, x, PMatDiag).diag().flat, truth.diagonal())
        assert_close((FIM(model, x, PMatImplicit) @ v).flat, truth @ v.flat)
        blocks = FIM(model, x, PMatBlockDiag).tensor()
        own = sum(where.stop - where.start for name, where in slices_of(model).items() if name.startswith("0."))
        assert_close(blocks[:own, :own], truth[:own, :own])
        assert_close(FIM(model, x, PMatMixed.default(kronecker=PMatEKFAC)).trace(), truth.trace())
