"""Which parameters are treated together, by which modules, and what hooks do to that."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from tangentlab.engine.coverage import coverage
from tangentlab.engine.groups import Group, parameter_groups
from tangentlab.engine.layout import LayerCollection
from tests.zoo import by_name


def groups_of(model: nn.Module, select: Any = None, **options: Any) -> tuple[Group, ...]:
    return parameter_groups(model, LayerCollection.from_model(model, select), **options)


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


def identity(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
    return None


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_a_module_with_any_hook_loses_its_closed_form_unless_the_hook_says_that_it_only_observes(kind: str) -> None:
    model, x = nn.Sequential(nn.Linear(3, 2)), torch.randn(4, 3)

    def hook(*args: Any) -> None:
        return None

    handle = getattr(model[0], f"register_{kind}_hook")(hook)
    assert coverage(model, x).structured_fraction == 0
    assert "hooks" in coverage(model, x).rows[0].reason
    assert groups_of(model, any_hooks=True)[0].sites
    hook.only_observes = True  # type: ignore[attr-defined]
    assert coverage(model, x).structured_fraction == 1
    handle.remove()


def test_hooks_for_all_modules_count_as_well() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    handle = register_module_forward_hook(identity)
    try:
        assert coverage(model, x).structured_fraction == 0
    finally:
        handle.remove()
    assert coverage(model, x).structured_fraction == 1


def test_hooks_on_a_parent_change_nothing_for_its_children() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    model.register_forward_hook(lambda module, args, output: 2 * output)
    assert coverage(model, torch.randn(4, 3)).structured_fraction == 1
