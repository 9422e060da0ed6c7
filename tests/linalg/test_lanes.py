"""Work in lanes: every item once, in threads that compute as their caller would."""

import multiprocessing
import os
import time

import pytest
import torch

from tangentlab.parallel import threads as lanes
from tangentlab.parallel.threads import in_lanes


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("items", [1, 2, 6, 13])
def test_every_item_is_in_one_lane_and_no_lane_is_empty(threads, count, items):
    threads(count)
    lanes = in_lanes(list, range(items), [1e9] * items)
    assert sorted(item for lane in lanes for item in lane) == list(range(items))
    assert all(lanes)
    assert torch.get_num_threads() == count


def test_workers_have_one_thread_and_the_callers_modes(threads):
    threads(2)

    def facts(_):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        return torch.get_num_threads(), torch.is_grad_enabled(), product.dtype

    assert in_lanes(facts, [0, 1], [1e9, 1e9]) == [(1, True, torch.float32)] * 2
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert in_lanes(facts, [0, 1], [1e9, 1e9]) == [(1, False, torch.bfloat16)] * 2


def test_an_error_in_a_lane_reaches_the_caller_and_the_thread_count_stays(threads):
    threads(2)

    def fail(lane):
        raise ValueError(f"lane {lane}")

    with pytest.raises(ValueError, match="lane"):
        in_lanes(fail, [0, 1], [1e9, 1e9])
    assert torch.get_num_threads() == 2


def test_a_kernel_is_the_same_in_lanes(threads, monkeypatch):
    import tangentlab as tl

    monkeypatch.setattr(lanes, "_LANE_OPERATIONS", 1.0)
    torch.manual_seed(0)
    net, x = torch.nn.Sequential(*[torch.nn.Linear(6, 6) for _ in range(4)]).double(), torch.randn(5, 6).double()
    found = []
    for count in (1, 2):
        threads(count)
        found.append((tl.NTK(net, x).matrix(), (tl.FIM(net, x, tl.PMatImplicit) @ tl.PVector.from_model(net)).flat))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")
def test_a_forked_process_has_lanes_of_its_own(threads):
    threads(2)
    in_lanes(list, [0, 1], [1e9, 1e9])
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(in_lanes, (list, [0, 1], [1e9, 1e9])).get(timeout=60) == [[0], [1]]


def test_an_error_leaves_no_lane_at_work(threads):
    threads(2)
    finished = []

    def work(lane):
        if lane == [0]:
            raise ValueError("lane")
        time.sleep(0.2)
        finished.append(lane)

    with pytest.raises(ValueError, match="lane"):
        in_lanes(work, [0, 1], [1e9, 1e9])
    assert finished == [[1]]
