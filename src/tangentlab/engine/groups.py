"""Static structure of a model: which parameters are treated together, and which modules use them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from tangentlab.engine.layout import LayerCollection
from tangentlab.layers import LayerRule, Matrix, OuterSum, rule_of
from tangentlab.layers.registry import Inputs, Part


@dataclass(frozen=True)
class Site:
    """One module that owns a parameter group, the local names of its parameters there, and the closed form."""

    module_name: str
    module: nn.Module = field(repr=False)
    local: tuple[str, ...]
    rule: LayerRule = field(repr=False)

    @property
    def matrix(self) -> Matrix:
        """How the layer sees the weight (or the bias alone) as matrices."""
        weight = local_parameter(self.module, self.local[0])
        assert weight is not None
        return Matrix.vector(weight.numel()) if weight.ndim < 2 else self.rule.matrix(self.module, weight)

    def uses(self, part: Part | None) -> bool:
        """Whether an operation that uses a part of the module's parameters uses these."""
        return part is None or not set(part.names).isdisjoint(self.local)

    def outer(self, inputs: Inputs, grads: Tensor, part: Part | None = None) -> OuterSum:
        """Per-example gradients of the group, from captured inputs (N, ...) and output-gradients (K, N, ...)."""
        return self.rule.outer(self.module, inputs, grads if part is None else part.whole(grads), self.local)


@dataclass(frozen=True)
class Group:
    """Parameters whose per-example gradients have one common form: (weight, bias) of a layer, or a single one.

    `sites` are the modules that use it; empty when there is no closed form, with the reason in `reason`.
    """

    names: tuple[str, ...]
    sites: tuple[Site, ...] = field(repr=False, default=())
    reason: str = ""

    def __hash__(self) -> int:
        """By the names alone: groups are looked up many times per call."""
        return hash(self.names)

    @property
    def name(self) -> str:
        """Module name for a layer's (weight, bias), else the parameter's name."""
        return self.names[0].rpartition(".")[0] if len(self.names) == 2 else self.names[0]

    def separated(self) -> tuple[Group, ...]:
        """A group for each of its parameters."""
        return tuple(
            Group((name,), tuple(replace(site, local=(site.local[place],)) for site in self.sites), self.reason)
            for place, name in enumerate(self.names)
        )


@dataclass(frozen=True)
class Owner:
    """A module with a parameter: its name, the local name of the parameter, its rule or the reason why it has none."""

    module_name: str
    module: nn.Module
    local: str
    rule: LayerRule | None
    reason: str


def parameter_groups(model: nn.Module, layout: LayerCollection) -> tuple[Group, ...]:
    """Groups that cover the layout, in flat order.

    Modules with hooks keep their closed form: a call is seen between their hooks, and whoever uses a form proves it.
    """
    canonical = {id(p): name for name, p in model.named_parameters()}
    owners: dict[str, list[Owner]] = {}
    for owner, parameter in _owned_parameters(model):
        if canonical[id(parameter)] in layout:
            owners.setdefault(canonical[id(parameter)], []).append(owner)
    groups: dict[str, Group] = {}
    for name in layout.names:
        if name not in groups:
            group = _group_of(name, owners, canonical)
            groups |= dict.fromkeys(group.names, group)
    return tuple(dict.fromkeys(groups[name] for name in layout.names))


def _owned_parameters(model: nn.Module) -> Iterator[tuple[Owner, nn.Parameter]]:
    """Modules with the parameters that they own; those of a part belong to the module whose rule names them."""
    claimed: set[tuple[int, str]] = set()
    for module_name, module in model.named_modules():  # a module comes before its parts
        rule, reason = rule_of(module)
        inner = [name for names in (rule.groups if rule else ()) for name in names if "." in name]
        for local, parameter in [
            *module._parameters.items(),
            *((name, local_parameter(module, name)) for name in inner),
        ]:
            if parameter is not None and (id(module), local) not in claimed:
                yield Owner(module_name, module, local, rule, reason), parameter
                part, name = _owner(module, local)
                claimed.add((id(part), name))


def local_parameter(module: nn.Module, local: str) -> nn.Parameter | None:
    """The parameter that a module, or a part of it, has under a local name; None where there is none."""
    owner, name = _owner(module, local)
    return None if owner is None else owner._parameters.get(name)


def _owner(module: nn.Module, local: str) -> tuple[nn.Module | None, str]:
    """The part of a module that has the parameter of a local name, and its name there."""
    *path, name = local.split(".")
    part: nn.Module | None = module
    for step in path:
        part = None if part is None else part._modules.get(step)
    return part, name


def _group_of(name: str, owners: dict[str, list[Owner]], canonical: dict[int, str]) -> Group:
    sites = []
    for owner in owners.get(name, []):
        if owner.rule is None or (reason := _refusal(owner.rule, owner.module, owner.local)):
            return Group((name,), reason=owner.reason if owner.rule is None else reason)
        sites.append(Site(owner.module_name, owner.module, (owner.local,), owner.rule))
    if len(sites) == 1:
        site = sites[0]
        found = {local: local_parameter(site.module, local) for local in site.rule.group_of(site.local[0])}
        named = {local: canonical.get(id(p), "") for local, p in found.items() if p is not None}
        alone = {local: known for local, known in named.items() if len(owners.get(known, ())) == 1}
        return Group(tuple(alone.values()), (Site(site.module_name, site.module, tuple(alone), site.rule),))
    return Group((name,), tuple(sites))


def _refusal(rule: LayerRule, module: nn.Module, local: str) -> str:
    """Why the rule of a module says nothing about one of its parameters, or ''."""
    if not rule.group_of(local):
        return f"{type(module).__name__} has no closed form for {local!r}"
    for name in (name for names in rule.groups for name in names):
        part, last = _owner(module, name)
        if part is not None and (vars(part).get(last) is not None or getattr(type(part), last, None) is not None):
            return f"its {last} is computed from other parameters (parametrization, weight_norm)"
    return ""
