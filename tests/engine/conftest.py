"""Every test of the engine starts from the same random state."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_random_state() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
