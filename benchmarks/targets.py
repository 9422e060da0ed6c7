"""What tangentlab has to reach, as ratios within one run, and whether it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.systems import GROUPS, SYSTEMS

FACTORS = ("nngeometry", "curvlinops")
ROWS = ("torch_func", "opacus")
TRANSFORMER_FACTORS = ("kronfluence", "curvlinops")


@dataclass(frozen=True)
class Target:
    """One row: a job, against whom, what is measured, and the bound.

    `measure` is `speedup` (fastest of `against` over tangentlab, at least), `memory` or `cost` (tangentlab over the
    least of `against`, peak bytes or time, at most), or `limit` (tangentlab's time over the time that its own operation count
    takes at the GEMM rate of the same run, at most).
    """

    job: str
    against: tuple[str, ...]
    measure: str
    required: float

    @property
    def text(self) -> str:
        """The opponent in words."""
        if self.against == tuple(GROUPS["peers"]):
            return "the fastest peer"
        labels = " / ".join(SYSTEMS[name].label for name in self.against)
        words = {"memory": f"peak memory of {labels}", "limit": "its operations at the GEMM rate"}
        return words.get(self.measure, f"the faster of {labels}" if len(self.against) > 1 else labels)


def _speedups(job: str, **required: float) -> list[Target]:
    return [Target(job, (name,), "speedup", factor) for name, factor in required.items()]


TARGETS = [
    *_speedups("ntk_mlp", nngeometry=15, torch_func=400, nt_structured=2),
    *_speedups("ntk_lenet", nngeometry=50, torch_func=3),
    *_speedups("ntk_resnet18", nt_structured=2.5, torch_func=6),
    Target("ntk_resnet18", ("torch_func",), "memory", 0.25),
    *_speedups("ntk_resnet18_scalar", torch_func=3, nt_structured=4),
    *_speedups("ntk_transformer", torch_func=4),
    Target("kfac_mlp", FACTORS, "speedup", 2),
    Target("kfac_resnet18", FACTORS, "speedup", 1.5),
    Target("ekfac_mlp", FACTORS, "speedup", 3),
    Target("ekfac_resnet18", FACTORS, "speedup", 6),
    Target("kfac_sample_resnet18", ("plain_gradient",), "cost", 2),
    Target("fvp_resnet18", tuple(GROUPS["peers"]), "speedup", 1.3),
    Target("ntk_mlp", ("gemm",), "limit", 2),
    Target("ntk_resnet18", ("gemm",), "limit", 2.5),
    *(Target(job, ROWS, "speedup", 1.1) for job in ("grads_gpt", "norms_gpt", "diag_empirical_gpt")),
    *(Target(f"kfac_empirical_{net}", TRANSFORMER_FACTORS, "speedup", 1.2) for net in ("gpt", "vit")),
    *(Target(f"ekfac_empirical_{net}", TRANSFORMER_FACTORS, "speedup", 2.5) for net in ("gpt", "vit")),
    *(
        Target(f"{kind}_empirical_{net}", TRANSFORMER_FACTORS, "memory", 1)
        for kind in ("kfac", "ekfac")
        for net in ("gpt", "vit")
    ),
    *_speedups("ntk_vit", torch_func=2),
    *(Target(f"{kind}_small", ("by_hand",), "cost", 2.5) for kind in ("ntk", "diag", "kfac")),
    Target("first_small", ("nngeometry",), "cost", 1.05),
    *(Target(f"hvp_{net}", ("kept_graph",), "cost", 1.05) for net in ("mlp", "resnet18")),
    *_speedups("eigenvalues_lenet", curvlinops=1.5),
    Target("ntk_vit", ("gemm",), "limit", 2),
]


def gemm_rate(record: dict[str, Any]) -> float | None:
    """Operations per second of the GEMM that was measured within a job."""
    gemm = record["systems"].get("gemm", {})
    return gemm["facts"]["operations"] / gemm["best"] if "best" in gemm else None


def gemm_gflops(jobs: dict[str, dict[str, Any]]) -> float | None:
    """The best GEMM rate of the whole run, in 10^9 operations per second."""
    rates = [rate for rate in map(gemm_rate, jobs.values()) if rate]
    return max(rates) / 1e9 if rates else None


def _reached(target: Target, record: dict[str, Any]) -> float | None:
    systems = record["systems"]
    own = systems.get("tangentlab", {})
    others = [systems[name] for name in target.against if "best" in systems.get(name, {})]
    if "best" not in own or not others:
        return None
    if target.measure == "memory":
        return own["peak_bytes"] / max(min(other["peak_bytes"] for other in others), 1)
    if target.measure == "limit":
        operations, rate = own.get("facts", {}).get("operations"), gemm_rate(record)
        return own["best"] / (operations / rate) if operations and rate else None
    fastest = min(other["best"] for other in others)
    return own["best"] / fastest if target.measure == "cost" else fastest / own["best"]


def evaluate(jobs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Every target with the required and the reached number; `met` is None where something was not measured."""
    rows = []
    for target in TARGETS:
        record = jobs.get(target.job)
        reached = _reached(target, record) if record else None
        at_least = target.measure == "speedup"
        met = None if reached is None else (reached >= target.required if at_least else reached <= target.required)
        measured = record["systems"] if record else {}
        missing = [name for name in target.against if "best" not in measured.get(name, {})]
        rows.append(
            {
                "job": target.job,
                "against": target.text,
                "measure": target.measure,
                "bound": "at least" if at_least else "at most",
                "required": target.required,
                "reached": reached,
                "met": met,
                "not_measured": missing,
            }
        )
    return rows
