"""Where the tables of claims of the package's own experiments lie."""

from __future__ import annotations

from pathlib import Path

from tangentlab.bench.claims import Claim
from tangentlab.bench.tables import read_claims

FOLDER = Path(__file__).parent / "claims"


def claims_of(name: str) -> tuple[Claim, ...]:
    """The claims of the experiment called `name`, from `claims/NAME.yaml`."""
    return read_claims(FOLDER / f"{name}.yaml")
