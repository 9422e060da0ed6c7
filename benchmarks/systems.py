"""Who computes: tangentlab, its peers and the yardsticks; which environment each needs and which jobs it can do."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.jobs import Job

IMAGES = frozenset({"mlp", "lenet", "resnet18"})
EVERY = IMAGES | {"transformer"}
GPT, VIT = frozenset({"gpt"}), frozenset({"vit"})


@dataclass(frozen=True)
class System:
    """One contender.

    Attributes:
        label: name in tables and charts.
        worker: module below `benchmarks.workers`.
        environment: name of its environment below the cache folder; None is tangentlab's own.
        abilities: kind of job -> networks it can treat.
        variant: which of the worker's routes to take.
        yardstick: not a peer but a measure of the machine.
    """

    label: str
    worker: str
    environment: str | None
    abilities: dict[str, frozenset[str]]
    variant: str = ""
    yardstick: bool = False

    def can(self, job: Job) -> bool:
        """Whether this system can do the job."""
        return job.net in self.abilities.get(job.kind, ())


def _also(abilities: dict[str, frozenset[str]], **more: frozenset[str]) -> dict[str, frozenset[str]]:
    """Abilities with more networks for some kinds."""
    return {kind: abilities.get(kind, frozenset()) | more.get(kind, frozenset()) for kind in abilities | more}


def _kinds(kinds: str, nets: frozenset[str] = EVERY) -> dict[str, frozenset[str]]:
    return dict.fromkeys(kinds.split(), nets)


_NT = {"worker": "neural_tangents", "environment": "neural_tangents", "abilities": _kinds("ntk")}

SMALL = frozenset({"small"})
_SECOND = {"hvp": IMAGES, "eigenvalues": IMAGES}
_TINY = {"ntk": SMALL, "diag": SMALL, "kfac": SMALL}
_TRANSFORMERS = {"ntk": VIT, "kfac": GPT | VIT, "ekfac": GPT | VIT, "diag": GPT, "grads": GPT, "norms": GPT}

SYSTEMS: dict[str, System] = {
    "tangentlab": System(
        "tangentlab",
        "tangentlab",
        None,
        _also(_also(_kinds("ntk kfac ekfac fvp diag grads"), **_TRANSFORMERS), **_TINY, **_SECOND, first=SMALL),
    ),
    "nngeometry": System(
        "nngeometry",
        "nngeometry",
        "nngeometry",
        _also(_kinds("ntk kfac ekfac fvp diag", IMAGES), **_TINY, first=SMALL),
    ),
    "by_hand": System("closed form by hand", "by_hand", None, _kinds("ntk diag kfac", SMALL)),
    "curvlinops": System(
        "curvlinops",
        "curvlinops",
        "curvlinops",
        _also(_kinds("kfac ekfac fvp", IMAGES), kfac=GPT | VIT | SMALL, ekfac=VIT, **_SECOND),
    ),
    "backpack": System("BackPACK", "backpack", "backpack", _also(_kinds("diag grads fvp", IMAGES), diag=SMALL)),
    "torch_func": System(
        "torch.func",
        "torch_func",
        None,
        _also(_kinds("ntk diag grads fvp"), ntk=VIT | SMALL, diag=GPT | SMALL, grads=GPT, norms=GPT),
    ),
    "kept_graph": System("autograd, graph kept", "kept_graph", None, _SECOND),
    "torch_linearize": System("torch.func linearize", "torch_func", None, _kinds("fvp"), variant="linearize"),
    "opacus": System("opacus", "opacus", "opacus", _kinds("grads norms diag", GPT)),
    "kronfluence": System("kronfluence", "kronfluence", "kronfluence", _kinds("kfac ekfac", GPT | VIT)),
    "pyhessian": System("PyHessian", "pyhessian", "pyhessian", _kinds("hvp eigenvalues", IMAGES)),
    "nt_structured": System("neural-tangents structured", **_NT, variant="STRUCTURED_DERIVATIVES"),
    "nt_products": System("neural-tangents vector products", **_NT, variant="NTK_VECTOR_PRODUCTS"),
    "nt_jacobian": System("neural-tangents Jacobian", **_NT, variant="JACOBIAN_CONTRACTION"),
    "plain_gradient": System("one gradient", "torch_func", None, _kinds("gradient"), yardstick=True),
    "gemm": System("GEMM", "torch_func", None, _kinds("gemm"), yardstick=True),
}

GROUPS = {
    "all": list(SYSTEMS),
    "neural_tangents": ["nt_structured", "nt_products", "nt_jacobian"],
    "peers": [name for name, system in SYSTEMS.items() if not system.yardstick and name != "tangentlab"],
}


def select(names: str) -> list[str]:
    """Systems by comma-separated names or groups; a leading minus removes (`all,-nt_products`)."""
    chosen: list[str] = []
    for part in [part.strip() for part in names.split(",") if part.strip()]:
        name = part.lstrip("-")
        members = GROUPS.get(name, [name])
        unknown = [member for member in members if member not in SYSTEMS]
        if unknown:
            raise ValueError(f"no system {name!r}; there are: {', '.join([*SYSTEMS, *GROUPS])}")
        if part.startswith("-"):
            chosen = [member for member in chosen or list(SYSTEMS) if member not in members]
        else:
            chosen += [member for member in members if member not in chosen]
    return chosen


def contenders(job: Job, chosen: list[str]) -> list[str]:
    """Those of the chosen systems that take part in a job, tangentlab first, the job's yardsticks last."""
    able = [name for name in chosen if SYSTEMS[name].can(job)]
    return able + [name for name in job.yardsticks if name in chosen and name not in able]
