"""Several threads on one model: the same values as one after the other, and the model as it was."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import torch
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.engine.snapshot import TURN, same_attributes
from tests.engine.state import model_state


class Counting(nn.Module):
    """Buffers that a forward writes, attributes that it sets, a parameter without closed form, and a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.slope, self.head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.PReLU(), nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = self.norm(self.fc(x)) / self.calls
        return self.head(self.slope(self.last))


def test_four_threads_on_one_model_have_the_values_of_one() -> None:
    torch.manual_seed(0)
    model = Counting().double().eval()
    inputs = [torch.randn(n, 3, dtype=torch.float64) for n in (3, 4, 5, 6)]
    v = tl.PVector.ones(model)
    work: list[Callable[[Tensor], Tensor]] = [
        lambda x: tl.NTK(model, x).data,
        lambda x: tl.FIM(model, x, tl.PMatDiag).diag().flat,
        lambda x: (tl.FIM(model, x, tl.PMatImplicit) @ v).flat,
        lambda x: tl.Jacobian(model, [(part,) for part in x.split(2)]).data,
    ]
    jobs = [(one, x) for one in work for x in inputs] * 3
    truth = [one(x) for one, x in jobs]
    before = model_state(model)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda job: job[0](job[1]), jobs))
    assert all(torch.allclose(one, two, rtol=1e-12, atol=0) for one, two in zip(found, truth))
    assert model_state(model) == before


def test_a_thread_waits_for_the_turn_of_another_and_may_take_its_own_again() -> None:
    model, inside, order = nn.Linear(2, 2), Event(), []

    def other() -> None:
        inside.wait()
        with same_attributes(model):
            order.append("other")

    thread = Thread(target=other)
    thread.start()
    with same_attributes(model), same_attributes(model):
        inside.set()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]
    assert TURN.acquire(blocking=False)
    TURN.release()
