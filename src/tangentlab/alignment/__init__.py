"""Tangent-feature alignment: what a kernel's spectrum, its alignment with the labels and its path say about a training.

Start from a kernel, ``K = NTK(model, probe)``, and ask for `kernel_spectrum(K)`, `label_alignment(K, labels)`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WHERE = {
    "similarity": (
        "Hierarchy",
        "MinibatchCKA",
        "cka",
        "hierarchical_alignment",
        "ka",
        "kernel_distance",
        "kernel_velocity",
        "label_alignment",
        "label_features",
        "layer_alignment",
        "representation_alignment",
        "unbiased_cka",
        "unbiased_hsic",
    ),
    "spectrum": ("KernelSpectrum", "estimate_spectrum", "kernel_spectrum"),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

if TYPE_CHECKING:
    from tangentlab.alignment.similarity import (
        Hierarchy,
        MinibatchCKA,
        cka,
        hierarchical_alignment,
        ka,
        kernel_distance,
        kernel_velocity,
        label_alignment,
        label_features,
        layer_alignment,
        representation_alignment,
        unbiased_cka,
        unbiased_hsic,
    )
    from tangentlab.alignment.spectrum import KernelSpectrum, estimate_spectrum, kernel_spectrum

__all__ = [*_MODULE_OF]


def __getattr__(name: str) -> Any:
    """Import a part when it is first used."""
    if name in _MODULE_OF:
        return getattr(import_module(f"tangentlab.alignment.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
