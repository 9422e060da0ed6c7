"""The metrics file: append-only, exact, and readable after anything that may happen to it."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tangentlab.experiments.bench.rows import RowWriter, count_rows, plain, read_rows, repair, restored


def write(path: Path, seed: int, count: int, on_disk: int = 0) -> None:
    writer = RowWriter(path, seed, on_disk)
    for number in range(count):
        writer.append("t", {"value": number / 3})
    writer.close()


@given(st.recursive(st.floats() | st.integers() | st.booleans(), lambda inner: st.lists(inner, max_size=3)))
def test_numbers_come_back_bit_for_bit_non_finite_ones_included(value: object):
    back = restored(json.loads(json.dumps(plain(value), allow_nan=False)))
    assert repr(back) == repr(value)


def test_tensors_and_arrays_become_numbers():
    assert plain({"a": torch.tensor(1.5), "b": np.float32(0.5), "c": torch.arange(2), "d": np.eye(1)}) == {
        "a": 1.5,
        "b": 0.5,
        "c": [0, 1],
        "d": [[1.0]],
    }
    assert plain(torch.tensor(math.nan)) == "NaN"
    with pytest.raises(TypeError, match="numbers, texts and lists"):
        plain(object())


def test_a_row_is_on_disk_as_soon_as_it_is_written(tmp_path: Path):
    writer = RowWriter(tmp_path / "m", 3, 0)
    writer.append("loss", {"step": 1, "loss": 0.25})
    assert read_rows(tmp_path / "m") == [{"seed": 3, "row": 0, "table": "loss", "step": 1, "loss": 0.25}]
    writer.close()


def test_rows_that_are_on_disk_already_are_passed_over(tmp_path: Path):
    write(tmp_path / "m", 0, 5)
    before = (tmp_path / "m").read_bytes()
    write(tmp_path / "m", 0, 8, on_disk=5)
    after = (tmp_path / "m").read_bytes()
    assert after.startswith(before) and [row["row"] for row in read_rows(tmp_path / "m")] == list(range(8))


def test_the_columns_of_the_bench_cannot_be_overwritten(tmp_path: Path):
    writer = RowWriter(tmp_path / "m", 0, 0)
    with pytest.raises(ValueError, match="seed"):
        writer.append("t", {"seed": 3})
    writer.close()


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_an_unfinished_last_line_is_left_out_and_repaired_away(tmp_path: Path, cut: int):
    path = tmp_path / "m"
    write(path, 0, 4)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    whole_objects = sum(line.endswith(b"}") for line in whole[:-cut].split(b"\n"))
    assert len(read_rows(path)) == whole_objects < 5
    repair(path)
    write(path, 0, 4, on_disk=count_rows(read_rows(path), 0))
    assert path.read_bytes() == whole


def test_a_damaged_line_ends_its_own_seed_only(tmp_path: Path):
    path = tmp_path / "m"
    write(path, 0, 3)
    write(path, 1, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"\x00\xff{]\n", lines[2], *lines[3:]]))
    rows = read_rows(path)
    assert [row["row"] for row in rows if row["seed"] == 0] == [0]
    assert [row["row"] for row in rows if row["seed"] == 1] == [0, 1, 2]


def test_several_processes_append_to_one_file_without_breaking_a_line(tmp_path: Path):
    program = (
        "import sys; from pathlib import Path; from tangentlab.experiments.bench.rows import RowWriter\n"
        "w = RowWriter(Path(sys.argv[1]), int(sys.argv[2]), 0)\n"
        "[w.append('t', {'values': [k / 7] * 400}) for k in range(300)]"
    )
    path = tmp_path / "m"
    processes = [subprocess.Popen([sys.executable, "-c", program, str(path), str(seed)]) for seed in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert [count_rows(read_rows(path), seed) for seed in range(3)] == [300, 300, 300]
