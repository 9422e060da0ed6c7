"""The exception types: every error says what is wrong and what to do about it."""


class TangentlabError(Exception):
    """Base class of every error raised on purpose by tangentlab."""


class InputError(TangentlabError, ValueError):
    """The data, an option or a vector cannot mean what was asked (wrong shape, empty loader, unknown name)."""


class ModelError(TangentlabError, RuntimeError):
    """The model is in a state or has a structure for which the quantity is not defined (train-mode BN, mixed examples)."""


class StructureError(TangentlabError, TypeError):
    """A representation needs a structure (Kronecker, rows with biases) that the named parameters do not have."""


class DataFileError(TangentlabError, OSError):
    """A data file is missing, truncated or not what its name says."""


class DiskError(TangentlabError, OSError):
    """A file or folder cannot be read or written: a full disk, a read-only folder, a file where a folder is needed."""


class MemoryBudgetError(TangentlabError, MemoryError):
    """The result would not fit: what it needs, what there is, and which representation would fit."""


class NumericsError(TangentlabError, ArithmeticError):
    """Non-finite values, or a factorization that did not succeed."""


class SolveError(NumericsError):
    """A linear system has no unique solution, or an iterative solver did not converge; suggests a damping."""
