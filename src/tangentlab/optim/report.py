"""What a preconditioner does with every parameter, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Treatment:
    """One parameter group.

    Attributes:
        names: its parameters.
        size: number of entries.
        method: how its gradient is preconditioned; "passed through" when it is not.
        reason: why it is passed through.
    """

    names: tuple[str, ...]
    size: int
    method: str
    reason: str = ""

    @property
    def treated(self) -> bool:
        """Whether the gradient is changed at all."""
        return not self.reason


@dataclass(frozen=True)
class Report:
    """The table; printing it shows one line per group and the share of parameters that are preconditioned."""

    title: str
    rows: tuple[Treatment, ...]

    @property
    def share(self) -> float:
        """Preconditioned parameters over all parameters."""
        return sum(row.size for row in self.rows if row.treated) / sum(row.size for row in self.rows)

    def __str__(self) -> str:
        width = max(len(", ".join(row.names)) for row in self.rows)
        lines = [f"{self.title}: {self.share:.1%} of the parameters are preconditioned"]
        for row in self.rows:
            what = row.method if row.treated else f"passed through: {row.reason}"
            lines.append(f"  {', '.join(row.names):<{width}}  {row.size:>10,}  {what}")
        return "\n".join(lines)


def shortfall(title: str, share: float, passed: Sequence[tuple[Sequence[str], int, str]], most: int = 5) -> str:
    """Why so little is preconditioned: names, sizes and reasons of what is passed through, the largest first."""
    largest = sorted(passed, key=lambda row: -row[1])
    told = "; ".join(f"{', '.join(names)} ({size:,}): {reason}" for names, size, reason in largest[:most])
    more = f"; and {len(passed) - most} more" if len(passed) > most else ""
    return (
        f"{title} preconditions {share:.1%} of the parameters, the others keep their gradients. {told}{more}. report() lists "
        "them all; layers= leaves out what is not meant to be preconditioned."
    )
