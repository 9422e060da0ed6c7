"""Which parameters are treated together, by which modules, and what hooks do to that."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tangentlab import NTK, Jacobian
from tangentlab.engine.coverage import coverage
from tangentlab.engine.groups import Group, parameter_groups
from tangentlab.engine.layout import LayerCollection
from tests.engine.truth import dense_jacobian, relative_error
from tests.zoo import by_name


def groups_of(model: nn.Module, select: Any = None) -> tuple[Group, ...]:
    return parameter_groups(model, LayerCollection.from_model(model, select))


def names_of(model: nn.Module, select: Any = None) -> list[tuple[str, ...]]:
    return [group.names for group in groups_of(model, select)]


def test_weight_and_bias_of_linear_layers_and_convolutions_form_one_group_and_those_of_norms_two() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3).eval(), nn.Flatten(), nn.Linear(6, 2))
    assert names_of(model) == [("0.weight", "0.bias"), ("1.weight",), ("1.bias",), ("3.weight", "3.bias")]
    assert [group.name for group in groups_of(model)] == ["0", "1.weight", "1.bias", "3"]


def test_a_frozen_or_unselected_bias_leaves_the_weight_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[0].bias.requires_grad_(False)  # type: ignore[union-attr]
    assert names_of(model) == [("0.weight",), ("1.weight", "1.bias")]
    assert names_of(model, "*.weight") == [("0.weight",), ("1.weight",)]
    assert names_of(model, "1.bias") == [("1.bias",)]


def test_a_tied_weight_is_one_group_with_all_its_modules_and_the_biases_are_their_own() -> None:
    model, _ = by_name("TiedLinear").catch()
    groups = groups_of(model)
    assert [group.names for group in groups] == [("a.weight",), ("a.bias",), ("b.bias",), ("head.weight", "head.bias")]
    assert [site.module_name for site in groups[0].sites] == ["a", "b"]


def test_a_bias_tied_to_a_parameter_of_another_layer_is_a_group_of_its_own() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    model[0].bias = model[1].weight
    groups = groups_of(model)
    assert [group.names for group in groups] == [("0.weight",), ("0.bias",), ("1.bias",)]
    assert [(site.module_name, site.local) for site in groups[1].sites] == [("0", ("bias",)), ("1", ("weight",))]
    assert coverage(model, torch.randn(4, 3)).structured_fraction == 1


def test_a_module_under_two_parents_is_one_site() -> None:
    model, _ = by_name("SharedModuleList").catch()
    assert all(len(group.sites) == 1 for group in groups_of(model))


def test_groups_cover_the_selection_in_its_order() -> None:
    model, _ = by_name("BareAndUnused").catch()
    layout = LayerCollection.from_model(model)
    assert [name for group in groups_of(model) for name in group.names] == list(layout.names)


HOOKS: dict[str, Callable[..., Any]] = {
    "forward": lambda module, args, output: None,
    "forward_pre": lambda module, args: None,
    "full_backward": lambda module, grad_input, grad_output: None,
    "full_backward_pre": lambda module, grad_output: None,
}


@pytest.mark.parametrize("kind", list(HOOKS))
def test_hooks_that_only_observe_leave_the_closed_form_alone(kind: str) -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), torch.randn(4, 3).double()
    for layer in (model[0], model[2]):
        getattr(layer, f"register_{kind}_hook")(HOOKS[kind])
    assert coverage(model, x).structured_fraction == 1
    assert relative_error(Jacobian(model, x).data, dense_jacobian(model, x)) < 1e-12


@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_hooks_for_all_modules_that_only_observe_leave_the_closed_form_alone(kind: str) -> None:
    model, x = nn.Linear(3, 2).double(), torch.randn(4, 3).double()
    handle = getattr(torch.nn.modules.module, f"register_module_{kind}_hook")(HOOKS[kind])
    try:
        assert coverage(model, x).structured_fraction == 1
        assert relative_error(Jacobian(model, x).data, dense_jacobian(model, x)) < 1e-12
    finally:
        handle.remove()


CHANGES: dict[str, Callable[..., Any]] = {
    "forward": lambda module, args, output: 2 * output,
    "forward_pre": lambda module, args: (args[0].sin(),),
    "full_backward": lambda module, grad_input, grad_output: tuple(g if g is None else 2 * g for g in grad_input),
    "full_backward_pre": lambda module, grad_output: tuple(3 * g for g in grad_output),
}


@pytest.mark.parametrize("everywhere", [False, True], ids=["own", "global"])
@pytest.mark.parametrize("kind", list(CHANGES))
def test_hooks_that_change_values_have_exact_rows_on_whatever_route(kind: str, everywhere: bool) -> None:
    """The truth is what plain autograd says of the hooked model."""
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), torch.randn(4, 3).double()
    if everywhere:
        handle = getattr(torch.nn.modules.module, f"register_module_{kind}_hook")(CHANGES[kind])
    else:
        handle = getattr(model[2], f"register_{kind}_hook")(CHANGES[kind])
    try:
        truth = dense_jacobian(model, x)
        assert relative_error(Jacobian(model, x).data, truth) < 1e-12
        assert relative_error(NTK(model, x).data, torch.einsum("cnp,dmp->cndm", truth, truth)) < 1e-12
    finally:
        handle.remove()


def test_hooks_on_a_parent_change_nothing_for_its_children() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    model.register_forward_hook(lambda module, args, output: 2 * output)
    assert coverage(model, torch.randn(4, 3)).structured_fraction == 1
