"""Modules and names that have moved: they are still found where they were, with a `DeprecationWarning` that names the place.

`install` puts one finder in front of Python's own, which answers for the old names alone.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import CodeType, ModuleType
from typing import Any

_PACKAGES = {
    "alignment.recorder": "recorder",
    "experiments.bench": "bench",
    "experiments.linearized_networks": "experiments.linearized",
    "report": "bench",
}
"""Old package to new one; a module in it has kept its name unless it stands below."""
_MODULES = {
    "bench.batches": "bench.minibatches",
    "bench.rows": "bench.row_files",
    "data.pictures": "data.image_files",
    "engine.curvature": "engine.weightings",
    "engine.free_memory": "engine.memory",
    "engine.labels": "engine.losses",
    "engine.parts": "engine.batches",
    "engine.progress": "engine.progress_bar",
    **{f"engine.{name}": "engine.snapshot" for name in ("randomness", "turns", "writes")},
    "engine.chain": "engine.plain_chain",
    "engine.dependence": "engine.graph",
    "engine.routes": "engine.capture",
    "engine.sharding": "engine.layout",
    "engine.sweep": "engine.rows",
    "layers.matrix": "layers.registry",
    "layers.workspace": "layers.contractions",
    "limits.tasks": "limits.task_families",
    "linalg._threads": "parallel.threads",
    "linalg.eigh": "linalg.symmetric",
    "linalg.sym_pow": "linalg.symmetric",
    "optim.distributed": "parallel.processes",
    **{f"report.{name}": f"figures.{name}" for name in ("format", "lint", "pictures", "style", "svg")},
    **{f"report.{name}": f"cli.{name}" for name in ("check", "console")},
    "report.progress": "bench.display",
    **{
        f"alignment.{name}": f"kernels.{name}"
        for name in ("bounds", "centring", "modes", "rescaling", "similarity", "spectrum", "supernat")
    },
    **{f"linearized.{name}": f"kernels.{name}" for name in ("dynamics", "eigenpairs", "function_space")},
    "linearized.groups": "linearized.example_groups",
    "linearized.modes": "kernels.mode_dynamics",
    "linearized.probes": "linearized.linearity",
    "objects.pmat.matrix_form": "objects.pmat.kronecker",
    "optim.block": "optim.layer_block",
    "optim.blockwise": "optim.layerwise",
    "optim.observer": "optim.passes",
    "optim.rows": "optim.example_rows",
    "optim.schedule": "optim.hyperparameters",
    "recorder.curvature": "recorder.traces",
    "recorder.flow": "alignment.flow",
    "recorder.schedule": "schedule",
    "optim.lookup": "layers.lookup",
    **{f"experiments.{name}": f"experiments.geometry.{name}" for name in ("kl_expansion", "parameter_distance")},
    **{
        f"experiments.{name}": f"experiments.metrics.{name}"
        for name in ("fim_quality", "ntk_evolution", "representation_costs")
    },
    **{
        f"experiments.fim_quality.{old}": f"experiments.metrics.{new}"
        for old, new in (
            ("experiment", "fim_quality"),
            ("measure", "_fim_quality_measures"),
            ("judge", "_fim_quality_claims"),
            ("draw", "_fim_quality_figures"),
        )
    },
    "experiments.lazy.dense": "experiments.lazy.dense_networks",
    "experiments.linearized_networks.dense": "experiments.lazy.dense_networks",
    **{
        f"experiments.linearized_networks.{name}": f"experiments.lazy.{name}"
        for name in ("quadratic", "spurious", "spurious_files")
    },
    **{
        f"experiments.lazy.{name}": f"experiments.lazy._{name}"
        for name in ("ensemble", "race", "race_figures", "setting")
    },
    **{
        f"experiments.natural_gradient.{name}": f"experiments.natural_gradient._{name}"
        for name in ("autoencoder_figures", "competitors", "convolutional_claims", "convolutional_figures")
    },
    "experiments.natural_gradient.race": "experiments.natural_gradient._optimizer_race",
}
_NAMES = {
    "alignment": {"Recording": "recorder.Recording", "TangentRecorder": "recorder.TangentRecorder"},
    "experiments.linearized": {
        name: f"experiments.lazy.{name}"
        for name in ("DenseRegimes", "QuadraticRegimes", "SpuriousCelebA", "SpuriousCue", "SpuriousWaterbirds")
    },
    "bench.claims": {"Verdict": "bench.verdicts.Verdict", "judge": "bench.verdicts.judge"},
    "bench.callbacks": {"At": "bench.callbacks.OnSteps", "Every": "bench.callbacks.OnPeriod"},
    "bench.minibatches": {"Batches": "bench.minibatches.Minibatches"},
    "experiments": {
        "At": "experiments.OnSteps",
        "Batches": "experiments.Minibatches",
        "Every": "experiments.OnPeriod",
    },
}
"""Old home to names, and where their objects are now."""
_ROOT = "tangentlab."


def new_home(module: str) -> str | None:
    """Where the module of an old name is now, or None."""
    if not module.startswith(_ROOT):
        return None
    old = module.removeprefix(_ROOT)
    if old in _PACKAGES or old in _MODULES:
        return _ROOT + (_PACKAGES.get(old) or _MODULES[old])
    package, _, name = old.rpartition(".")
    return f"{_ROOT}{_PACKAGES[package]}.{name}" if package in _PACKAGES else None


def moved_name(package: str, name: str) -> Any:
    """The object that was called `package.name`, with a warning; AttributeError where there is none."""
    home = _NAMES.get(package.removeprefix(_ROOT), {}).get(name)
    if home is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    _warn(f"{package}.{name}", _ROOT + home)
    module, _, new = home.rpartition(".")
    return getattr(import_module(_ROOT + module), new)


def install() -> None:
    """Find old names from now on."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} has moved to {new}", DeprecationWarning, stacklevel=3)


class _Moved(MetaPathFinder, Loader):
    """Imports the module of today under the name of yesterday."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        new = new_home(fullname)
        if new is None or find_spec(new) is None:
            return None
        _warn(fullname, new)
        return spec_from_loader(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_today(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module has been executed; Python has put the old spec into it, which goes out again."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`."""
        spec = find_spec(_today(fullname))
        return spec.loader.get_code(spec.name) if spec is not None else None  # type: ignore[union-attr]


def _today(fullname: str) -> str:
    return new_home(fullname) or fullname
