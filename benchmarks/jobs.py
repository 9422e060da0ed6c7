"""What is computed: the catalogue of jobs, at full size and at a tiny size that only checks values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

T = TypeVar("T")

KIND_TITLES = {
    "ntk": "NTK",
    "kfac": "KFAC",
    "ekfac": "EKFAC",
    "fvp": "10 Fisher-vector products",
    "diag": "Fisher diagonal",
    "grads": "per-example gradients",
    "norms": "per-example gradient norms",
    "gradient": "one gradient",
    "hvp": "10 Hessian-vector products",
    "eigenvalues": "top 5 Hessian eigenvalues",
    "first": "first NTK in a fresh process",
}
NET_TITLES = {
    "mlp": "MLP",
    "small": "small MLP",
    "lenet": "LeNet",
    "resnet18": "ResNet18",
    "transformer": "transformer",
    "gpt": "GPT",
    "vit": "ViT",
}

PRODUCTS = 10
EIGENVALUES = 5
GEMM_SIZE = 2048

# Largest relative deviation that still counts as the same value (float32). EKFAC's basis is only defined up to
# rotations inside nearly equal eigenvalues, so its product with a vector may differ more than its trace. Leading eigenvalues
# are found to the tolerance that every system has by default.
TOLERANCE = dict.fromkeys(KIND_TITLES, 1e-4)
# Ghost clipping adds up products of pairs of positions, in which rounding counts more than in gradients.
LOOSE = {("opacus", "norms"): 1e-3, ("ekfac", "product"): 1e-3, ("eigenvalues", "eigenvalues"): 0.05}


@dataclass(frozen=True)
class Job:
    """One piece of work: a kind of object, of a network, on n inputs."""

    name: str
    kind: str
    net: str
    n: int
    options: dict[str, Any] = field(default_factory=dict)
    fisher: str = "exact"
    yardsticks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """A short line for tables and charts."""
        if self.kind == "gemm":
            return f"GEMM {GEMM_SIZE} x {GEMM_SIZE}"
        outputs = self.options.get("outputs", 10)
        fisher = {"exact": ", exact Fisher", "sample": ", one-sample Fisher", "empirical": ", empirical"}[self.fisher]
        tail = fisher if self.kind in ("kfac", "ekfac") or self.fisher == "empirical" else ""
        if self.kind == "ntk":
            tail = f", {outputs} output{'s' * (outputs != 1)}"
        return f"{KIND_TITLES[self.kind]}, {NET_TITLES[self.net]}, n={self.n}{tail}"

    def message(self) -> dict[str, Any]:
        """What a worker needs to know, as plain data."""
        return asdict(self)


def _catalogue() -> list[Job]:
    jobs = [
        Job("ntk_mlp", "ntk", "mlp", 64, yardsticks=("gemm",)),
        Job("ntk_lenet", "ntk", "lenet", 16),
        Job("ntk_resnet18", "ntk", "resnet18", 16, yardsticks=("gemm",)),
        Job("ntk_resnet18_scalar", "ntk", "resnet18", 64, {"outputs": 1}),
        Job("ntk_transformer", "ntk", "transformer", 16),
    ]
    for kind in ("kfac", "ekfac"):
        for fisher in ("exact", "sample"):
            for net, n in (("mlp", 256), ("resnet18", 32)):
                middle = "_sample" if fisher == "sample" else ""
                jobs.append(Job(f"{kind}{middle}_{net}", kind, net, n, fisher=fisher, yardsticks=("plain_gradient",)))
    for net, n in (("mlp", 256), ("resnet18", 32)):
        jobs.append(Job(f"diag_{net}", "diag", net, n, yardsticks=("plain_gradient",)))
    for net, n in (("mlp", 64), ("resnet18", 32)):
        jobs.append(Job(f"grads_{net}", "grads", net, n, yardsticks=("plain_gradient",)))
    jobs += _transformers()
    jobs += [Job(f"{kind}_small", kind, "small", 16) for kind in ("ntk", "diag", "kfac", "first")]
    jobs += [Job("hvp_mlp", "hvp", "mlp", 256, {"width": 256, "depth": 2}), Job("hvp_resnet18", "hvp", "resnet18", 64)]
    jobs.append(Job("eigenvalues_lenet", "eigenvalues", "lenet", 256))
    jobs.append(Job("fvp_resnet18", "fvp", "resnet18", 32, yardsticks=("plain_gradient",)))
    jobs += [Job("gradient_mlp", "gradient", "mlp", 256), Job("gradient_resnet18", "gradient", "resnet18", 32)]
    jobs.append(Job("gemm", "gemm", "mlp", 1))
    return jobs


def _transformers() -> list[Job]:
    """Rows of a language model with a loss at every token, and the factors of its blocks; those of a vision transformer."""
    jobs = [Job(f"{kind}_gpt", kind, "gpt", 16, yardsticks=("plain_gradient",)) for kind in ("grads", "norms")]
    jobs.append(Job("diag_empirical_gpt", "diag", "gpt", 16, fisher="empirical", yardsticks=("plain_gradient",)))
    for kind in ("kfac", "ekfac"):
        for net in ("gpt", "vit"):
            job = Job(f"{kind}_empirical_{net}", kind, net, 32, fisher="empirical", yardsticks=("plain_gradient",))
            jobs.append(job)
    return [*jobs, Job("ntk_vit", "ntk", "vit", 32, yardsticks=("gemm",))]


JOBS = {job.name: job for job in _catalogue()}

TINY_NETS = {
    "mlp": {"width": 24, "inputs": 20},
    "small": {},
    "lenet": {},
    "resnet18": {"width": 4},
    "transformer": {"width": 16, "layers": 2, "heads": 2, "vocabulary": 30, "tokens": 6},
    "gpt": {"width": 16, "layers": 2, "heads": 2, "vocabulary": 30, "tokens": 6},
    "vit": {"width": 16, "layers": 2, "heads": 2},
}
TINY_N = {"mlp": 8, "small": 8, "lenet": 3, "resnet18": 4, "transformer": 4, "gpt": 4, "vit": 3}


def tiny(job: Job) -> Job:
    """The same job on a few examples and a narrow network: seconds for all systems, to check values."""
    outputs = {} if job.net == "gpt" else {"outputs": min(job.options.get("outputs", 10), 4)}
    return replace(job, n=TINY_N[job.net], options={**TINY_NETS[job.net], **outputs})


def pick(names: str, catalogue: Mapping[str, T]) -> list[T]:
    """Entries by comma-separated names or prefixes (`ntk` picks all kernels); `all` is the whole catalogue.

    Raises:
        ValueError: a name fits nothing; the message lists what there is.
    """
    chosen: dict[str, T] = {}
    for name in [part.strip() for part in names.split(",") if part.strip()]:
        matches = [key for key in catalogue if name in ("all", key)]
        matches = matches or [key for key in catalogue if key.startswith(f"{name}_")]
        if not matches:
            raise ValueError(f"no job {name!r}; there are: {', '.join(catalogue)}")
        chosen |= {key: catalogue[key] for key in matches}
    return list(chosen.values())


def select(names: str, is_tiny: bool = False) -> list[Job]:
    """The picked jobs of the catalogue, at full or at tiny size."""
    chosen = pick(names, JOBS)
    return [tiny(job) for job in chosen] if is_tiny else chosen
