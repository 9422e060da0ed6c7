"""The tour: a small network on the embedded digits, its Fisher matrix, its tangent kernel, and natural gradient.

`python -m tangentlab.demo` (or `make demo`) takes about a minute, needs no network and writes one HTML page.
"""

from tangentlab.demo.tour import Settings, run_tour

__all__ = ["Settings", "run_tour"]
