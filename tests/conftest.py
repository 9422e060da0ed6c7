"""Shared basics: one thread per process, a fixed seed, and the real data where it exists."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: Ctrl-C is tested all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def seed() -> Iterator[Callable[[int], torch.Generator]]:
    """Seed torch's global generator with 0; call it to reseed with another number and get a generator of that seed."""

    def reseed(value: int) -> torch.Generator:
        torch.manual_seed(value)
        return torch.Generator().manual_seed(value)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield reseed


@pytest.fixture(scope="session")
def shared_data(pytestconfig: pytest.Config) -> Path:
    """Return the folder of real data (`mnist/`, `kmnist/`, `cifar10/`), or skip where it is absent."""
    folder = (pytestconfig.rootpath / ".." / "shared" / "data").resolve()
    if not folder.is_dir():
        pytest.skip("the real data is not here: ../shared/data does not exist next to the project")
    return folder
