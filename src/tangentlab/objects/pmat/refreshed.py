"""Matrices that know where they come from, and can be estimated anew in place."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from tangentlab.engine.rows import Rows
from tangentlab.errors import InputError
from tangentlab.objects.pmat.blockwise import BlockwisePMat


class Refreshed(BlockwisePMat):
    """A blockwise matrix with an eigenbasis that is worth keeping while the rest is estimated anew."""

    _rows: Rows | None = None
    _options: Mapping[str, Any] = {}

    @abstractmethod
    def update_diag(self, data: Any = None) -> None:
        """Second moments anew, bases kept."""

    def _rows_of(self, data: Any) -> Rows:
        if isinstance(data, Rows):
            return data
        rows = self._rows
        if rows is None:
            raise InputError(
                "This matrix does not know its model any more (it was unpickled, loaded or made from others): build it anew."
            )
        return Rows(rows.network, data, rows.weighting.fresh()) if data is not None else rows

    def refresh_basis(self, data: Any = None) -> None:
        """Basis and second moments anew, in place."""
        rows = self._rows_of(data)
        fresh = type(self).from_rows(rows, **self._options)
        self.blocks, self.examples = fresh.blocks, fresh.examples

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_rows"}
