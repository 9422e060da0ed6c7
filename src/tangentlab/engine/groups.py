"""Static structure of a model: which parameters are treated together, and which modules use them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from tangentlab.engine.layout import LayerCollection
from tangentlab.layers import LayerRule, rule_of


@dataclass(frozen=True)
class Site:
    """One module that owns a parameter group, the local names of its parameters there, and the closed form."""

    module_name: str
    module: nn.Module = field(repr=False)
    local: tuple[str, ...]
    rule: LayerRule = field(repr=False)


@dataclass(frozen=True)
class Group:
    """Parameters whose per-example gradients have one common form: (weight, bias) of a layer, or a single one.

    `sites` are the modules that use it; empty when there is no closed form, with the reason in `reason`.
    """

    names: tuple[str, ...]
    sites: tuple[Site, ...] = field(repr=False, default=())
    reason: str = ""

    @property
    def name(self) -> str:
        """Module name for a layer's (weight, bias), else the parameter's name."""
        return self.names[0].rpartition(".")[0] if len(self.names) == 2 else self.names[0]


def parameter_groups(model: nn.Module, layout: LayerCollection) -> tuple[Group, ...]:
    """Groups that cover the layout, in flat order.

    Modules with hooks keep their closed form: a call is seen between their hooks, and whoever uses a form proves it.
    """
    canonical = {id(p): name for name, p in model.named_parameters()}
    owners: dict[str, list[tuple[str, nn.Module, str]]] = {}
    for module_name, module in model.named_modules():
        for local, parameter in module._parameters.items():
            if parameter is not None and canonical[id(parameter)] in layout:
                owners.setdefault(canonical[id(parameter)], []).append((module_name, module, local))
    groups: dict[str, Group] = {}
    for name in layout.names:
        if name not in groups:
            group = _group_of(name, owners, canonical, layout)
            groups |= dict.fromkeys(group.names, group)
    return tuple(dict.fromkeys(groups[name] for name in layout.names))


def _group_of(
    name: str,
    owners: dict[str, list[tuple[str, nn.Module, str]]],
    canonical: dict[int, str],
    layout: LayerCollection,
) -> Group:
    sites = []
    for module_name, module, local in owners.get(name, []):
        rule, reason = _eligible_rule(module, local)
        if rule is None:
            return Group((name,), reason=reason)
        sites.append(Site(module_name, module, (local,), rule))
    if len(sites) == 1 and sites[0].rule.joint and sites[0].local == ("weight",):
        site, bias = sites[0], sites[0].module._parameters.get("bias")
        bias_name = canonical.get(id(bias)) if bias is not None else None
        if bias_name in layout and len(owners[bias_name]) == 1:  # type: ignore[index]
            return Group((name, bias_name), (Site(site.module_name, site.module, ("weight", "bias"), site.rule),))  # type: ignore[arg-type]
    return Group((name,), tuple(sites))


def _eligible_rule(module: nn.Module, local: str) -> tuple[LayerRule | None, str]:
    """The rule of a module if nothing on it can change what its forward means."""
    rule, reason = rule_of(module)
    if rule is None:
        return None, reason
    if local not in ("weight", "bias"):
        return None, f"{type(module).__name__} has no closed form for {local!r}"
    if "weight" in vars(module) or "weight" not in module._parameters:
        return None, "its weight is computed from other parameters (parametrization, weight_norm)"
    return rule, ""
