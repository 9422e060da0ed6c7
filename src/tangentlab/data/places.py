"""Where data files are looked for, and what is said when they are nowhere.

The order: an explicit path, `$TANGENTLAB_DATA`, the user's cache folder. In each of these roots a data set may lie in
the root itself, in a folder with its name, or in the folders that the usual download tools make.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tangentlab.errors import DataFileError

ENVIRONMENT = "TANGENTLAB_DATA"
OFFLINE = "TANGENTLAB_OFFLINE"


def cache_folder() -> Path:
    """The user's folder for downloaded data: `$XDG_CACHE_HOME` or the platform's own place."""
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "tangentlab" / "data"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tangentlab" / "data"
    if os.name == "nt" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "tangentlab" / "data"
    return Path.home() / ".cache" / "tangentlab" / "data"


def online_allowed(download: bool) -> bool:
    """Whether fetching is wanted by the caller and not switched off by `$TANGENTLAB_OFFLINE`."""
    return download and os.environ.get(OFFLINE, "") in ("", "0")


@dataclass(frozen=True)
class Search:
    """The places of one data set: roots in their order, and the folders tried inside each root."""

    name: str
    folders: Sequence[str]
    path: str | os.PathLike[str] | None = None

    def roots(self) -> list[tuple[str, Path]]:
        """`(why, folder)` of every root; an explicit path is the only root when it is given."""
        if self.path is not None:
            return [("explicit path", Path(self.path).expanduser())]
        roots = [("user's cache", cache_folder())]
        if value := os.environ.get(ENVIRONMENT):
            roots.insert(0, (f"${ENVIRONMENT}", Path(value).expanduser()))
        return roots

    def find(self, *files: Sequence[str]) -> list[Path] | None:
        """The paths of all `files` in the first folder that holds them all; a file is given by its possible names.

        A `.gz` after a name is accepted too. Files from two folders are never mixed: they may belong to two copies.
        """
        for _, root in self.roots():
            for folder in ("", *self.folders):
                found = [existing(root / folder, names) for names in files]
                if all(path is not None for path in found):
                    return [path for path in found if path is not None]
        return None

    def missing(self, file_names: Sequence[str], online: str, *, fetched: bool = True) -> DataFileError:
        """The error for files that are nowhere: where it looked, and how to get them; not all sets can be `fetched`."""
        looked = "\n".join(
            f"  - {why}: {root}{' (does not exist)' if not root.exists() else ''}" for why, root in self.roots()
        )
        if self.path is None and ENVIRONMENT not in os.environ:
            looked = f"  - ${ENVIRONMENT}: not set\n{looked}"
        otherwise = ", or run once with network access: they are then fetched and kept in the cache" if fetched else ""
        return DataFileError(
            f"{self.name}: no file {' or '.join(file_names)} (plain or .gz).\n"
            f"Looked in (itself and {', '.join(self.folders)}):\n{looked}\n  - online: {online}\n"
            f"To get it: put the data set's canonical files into a folder '{self.folders[0]}' and set {ENVIRONMENT} to "
            f"the folder above it{otherwise}."
        )


def existing(folder: Path, names: Sequence[str]) -> Path | None:
    """The first file of `folder` with one of these names, plain or with `.gz`."""
    candidates = (folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)
