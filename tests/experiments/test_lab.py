"""What an experiment can rely on while it runs."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from tangentlab.bench.checkpoints import CheckpointStore
from tangentlab.bench.errors import RunError, RunStopped
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.row_files import read_rows
from tangentlab.bench.runner import make_config
from tangentlab.bench.seeds import derive, seeded
from tangentlab.errors import DataFileError
from tangentlab.experiments import Lab, Results, find


@pytest.fixture
def lab(tmp_path: Path) -> Callable[..., Lab]:
    kind = find("toy-claims").at("smoke")
    folder = RunFolder.create(tmp_path, make_config(kind, "smoke"))
    return lambda seed=0, **options: Lab(kind, folder, seed, **options)


def test_named_streams_do_not_disturb_each_other(lab: Callable[..., Lab]):
    one, other = lab(), lab()
    torch.randn(5, generator=one.generator("a"))
    assert torch.equal(torch.randn(3, generator=one.generator("b")), torch.randn(3, generator=other.generator("b")))
    assert one.numpy_generator("b").random() == other.numpy_generator("b").random()


def test_streams_differ_between_names_and_between_seeds(lab: Callable[..., Lab]):
    draws = {
        torch.randn(1, generator=lab(seed).generator(*names)).item()
        for seed in (0, 1)
        for names in (("a",), ("b",), ("a", 1), ("a1",))
    }
    assert len(draws) == 8


def test_derived_seeds_are_the_same_on_every_machine():
    assert derive(0, "data") == 0x5B1C6E768CDFB059
    assert derive(1, "2") == derive(1, 2) and 0 <= derive(-5, "x") < 2**63


def test_a_seeded_block_restores_the_global_generator():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with seeded(1, "model"):
        inside = torch.randn(2)
    assert torch.equal(torch.get_rng_state(), state)
    with seeded(1, "model"):
        assert torch.equal(torch.randn(2), inside)


def test_a_stage_is_computed_once_and_its_log_is_kept(lab: Callable[..., Lab]):
    calls = []

    def compute(own: Lab) -> dict[str, torch.Tensor]:
        calls.append(1)
        own.log("stage", value=len(calls))
        return {"x": torch.arange(3)}

    for _ in range(3):
        own = lab()
        assert torch.equal(own.stage("big", lambda own=own: compute(own))["x"], torch.arange(3))
        own.log("after", value=1)
    rows = read_rows(own._folder.metrics_file)
    assert len(calls) == 1 and [row["table"] for row in rows] == ["stage", "after"]


def test_a_damaged_checkpoint_is_an_error_and_without_it_the_work_is_done_again(lab: Callable[..., Lab]):
    lab().stage("big", lambda: 1)
    (file,) = lab()._folder.path.rglob("*.pt")
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(RunError, match=f"'stage big' is damaged. Delete {file}"):
        lab().stage("big", lambda: 2)
    file.unlink()
    assert lab().stage("big", lambda: 2) == 2


def test_a_checkpoint_that_is_ahead_of_the_log_is_not_used(lab: Callable[..., Lab]):
    own = lab()
    own.stage("big", lambda: own.log("stage", value=1) or 1)
    own._folder.metrics_file.write_text("")
    assert lab().stage("big", lambda: 2) == 2


def test_checkpoints_execute_nothing_when_they_are_read(tmp_path: Path):
    import pickle

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    store = CheckpointStore(tmp_path / "store")
    store.save("state", {"a": 1})
    (file,) = (tmp_path / "store").iterdir()
    file.write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises(RunError, match="'state' is damaged. Delete "):
        store.load("state")
    assert not (tmp_path / "executed").exists()


def test_no_flipped_bit_changes_a_checkpoint_or_an_array(tmp_path: Path):
    state = {"weights": torch.arange(6.0), "counters": {"step": 3, "loss": 0.25}}
    store = CheckpointStore(tmp_path)
    store.save("state", state)
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    refused = 0
    for place in range(0, len(content), 5):
        bit = place % 8
        content[place] ^= 1 << bit
        file.write_bytes(content)
        try:
            found = store.load("state")
        except RunError as error:
            assert str(file) in str(error)
            refused += 1
        else:  # in the letters that say where the checksum begins
            assert found is not None and found["counters"] == state["counters"], place
            assert torch.equal(found["weights"], state["weights"]), place
        content[place] ^= 1 << bit
    assert refused >= len(range(0, len(content), 5)) - 5
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match="Delete "):
        store.load("state")


def test_a_checkpoint_of_an_earlier_version_without_a_checksum_is_read(tmp_path: Path):
    store = CheckpointStore(tmp_path)
    store.save("state", {"a": 1})
    (file,) = tmp_path.iterdir()
    torch.save({"a": 2}, file)
    assert store.load("state") == {"a": 2}


def test_arrays_are_plain_files_of_numpy_and_damage_is_noticed(lab: Callable[..., Lab]):
    own = lab()
    own.log("t", value=1)
    own.save_array("big", torch.arange(5.0))
    own.close()
    file, results = own._folder.array_file(own.seed, "big"), Results(own._folder)
    assert np.load(file).tolist() == results.array("big", own.seed).tolist() == [0, 1, 2, 3, 4]
    content = bytearray(file.read_bytes())
    content[140] ^= 4
    file.write_bytes(content)
    with pytest.raises(RunError, match="array 'big' .*damaged"):
        results.array("big", own.seed)
    np.save(file, np.eye(2))
    assert results.array("big", own.seed).tolist() == [[1, 0], [0, 1]]


def test_a_stage_that_could_not_be_read_back_is_refused_at_once(lab: Callable[..., Lab]):
    with pytest.raises(TypeError, match="made of tensors"):
        lab().stage("half", lambda: Fraction(1, 2))
    assert lab().stage("half", lambda: [1.5, "x", None, (2, True)]) == [1.5, "x", None, (2, True)]


def test_checkpoints_with_similar_names_are_kept_apart(tmp_path: Path):
    store = CheckpointStore(tmp_path)
    store.save("a b", {"v": 1})
    store.save("a/b", {"v": 2})
    assert (store.load("a b"), store.load("a/b"), store.load("c")) == ({"v": 1}, {"v": 2}, None)


def test_an_undeclared_claim_cannot_be_measured(lab: Callable[..., Lab]):
    with pytest.raises(KeyError, match="toy-z"):
        lab().measure("toy-z", 1.0)
    with pytest.raises(KeyError, match="toy-z"):
        lab().not_tested("toy-z", "why")


@pytest.mark.parametrize("table", ["claim", "end", "not-tested", "data"])
def test_the_tables_of_the_bench_cannot_be_written_by_an_experiment(lab: Callable[..., Lab], table: str):
    with pytest.raises(ValueError, match="belongs to the bench"):
        lab().log(table, value=1)


def test_loops_are_cut_at_max_steps_and_counted(lab: Callable[..., Lab]):
    own = lab(max_steps=2)
    assert list(own.loop(range(10), "ten")) == [0, 1] and own.steps == 2 and own.capped(7) == 2
    free = lab()
    assert list(free.loop(iter(range(3)), "three")) == [0, 1, 2] and free.steps == 3 and free.capped(7) == 7


def test_progress_tells_what_is_happening_with_live_numbers(lab: Callable[..., Lab]):
    events: list[dict] = []
    own = lab(report=events.append)
    own.live(loss=torch.tensor(0.5))
    list(own.loop(range(2), "two"))
    assert events[0]["what"] == "two" and events[0]["total"] == 2 and events[0]["live"] == {"loss": 0.5}
    assert events[-1]["done"] == 2


def test_a_stop_request_is_noticed_at_the_next_step(lab: Callable[..., Lab]):
    done = []
    with pytest.raises(RunStopped):
        for item in lab(stopping=lambda: len(done) == 3).loop(range(10), "ten"):
            done.append(item)
    assert done == [0, 1, 2]


def test_absent_data_is_an_error_unless_the_run_is_only_a_trial(
    lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("TANGENTLAB_DATA", raising=False)
    with pytest.raises(DataFileError):
        lab().dataset("fashion-mnist", "test")
    own = lab(max_steps=1)
    assert own.dataset("fashion-mnist", "test").stand_in
    row = read_rows(own._folder.metrics_file)[-1]
    assert (row["table"], row["data"], row["examples"], row["stand_in"]) == ("data", "fashion-mnist", 10000, True)


def test_arrays_are_stored_exactly(lab: Callable[..., Lab]):
    own = lab()
    own.save_array("kernel", torch.eye(2, dtype=torch.float64, requires_grad=True))
    own.save_array("kernel", np.arange(4))
    assert np.array_equal(np.load(own._folder.array_file(0, "kernel")), np.arange(4))
