"""The metrics file: append-only, exact, and readable after anything that may happen to it."""

import json
import math
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tangentlab.bench.errors import RunError
from tangentlab.bench.row_files import RowWriter, count_rows, read_rows, repair
from tangentlab.errors import InputError
from tangentlab.plain import plain, restored


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
    for column in ("seed", "row", "table", "crc32"):
        with pytest.raises(ValueError, match=column):
            writer.append("t", {column: 3})
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


NESTED = b'{"seed": 0, "row": 1, "table": "t", "value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        (b"\x00\xff{]\n", "row 1 of seed 0 is missing before line 3"),
        (b"", "row 1 of seed 0 is missing before line 2"),
        (
            b'{"seed": 0, "row": 1, "table": "t", "value": 0.5, "crc32": "00000000"}\n',
            "line 2 is not as it was written",
        ),
        (b'{"seed": 0, "row": 1, "table": "t", "crc32": "text", "value": 0.5}\n', "line 2 is not as it was written"),
        (NESTED, "line 2 is not as it was written"),
        (NESTED[:-50_000] + b"\n", "line 2 is not as it was written"),
        (
            NESTED.replace(b"[" * 100_000, b"[" * 700).replace(b"]" * 100_000, b"]" * 700),
            "line 2 is not as it was written",
        ),
    ],
    ids=["garbage", "deleted", "changed", "a column of that name", "nested", "nested, unfinished", "nested, readable"],
)
def test_a_damaged_line_is_an_error_and_repair_ends_its_own_seed_only(tmp_path: Path, damaged: bytes, words: str):
    path = tmp_path / "m"
    write(path, 0, 3)
    write(path, 1, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], damaged, lines[2], *lines[3:]]))
    with pytest.raises(RunError, match=rf"m is damaged: {words}\..*--resume"):
        read_rows(path)
    assert words in repair(path)
    rows = read_rows(path)
    assert [row["row"] for row in rows if row["seed"] == 0] == [0]
    assert [row["row"] for row in rows if row["seed"] == 1] == [0, 1, 2]
    assert repair(path) == ""


def test_no_flipped_bit_changes_what_is_read(tmp_path: Path):
    path = tmp_path / "m"
    for seed in (0, 11):
        writer = RowWriter(path, seed, 0)
        writer.append("loss", {"value": 1.25, "name": "Jane", "list": [1, math.inf]})
        writer.append("end", {"steps": 3})
        writer.close()
    truth, content = read_rows(path), bytearray(path.read_bytes())
    refused = 0
    for place in range(len(content)):
        for bit in range(8):
            content[place] ^= 1 << bit
            path.write_bytes(content)
            try:
                found = read_rows(path)
            except RunError:
                refused += 1
            else:  # a last line that looks unfinished is left out, and its seed has not come to its end
                assert all(row in truth for row in found), (place, bit)
                assert {row["seed"] for row in found if row["table"] == "end"} != {0, 11}, (place, bit)
            content[place] ^= 1 << bit
    assert refused > 7 * len(content)


def test_files_of_earlier_versions_without_checksums_are_read_and_get_them_when_a_run_goes_on(tmp_path: Path):
    path = tmp_path / "m"
    old = [{"seed": 0, "row": number, "table": "t", "commit": "0123abcd"} for number in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in old))
    assert read_rows(path) == old
    write(path, 0, 4, on_disk=3)
    assert len(read_rows(path)) == 4
    assert repair(path) == "" and path.read_bytes().count(b"crc32") == 4 and read_rows(path)[:3] == old


def test_lines_are_json_with_the_checksum_of_what_stands_before_it(tmp_path: Path):
    write(tmp_path / "m", 4, 1)
    row = json.loads((tmp_path / "m").read_text())
    check = row.pop("crc32")
    assert check == f"{zlib.crc32(json.dumps(row).encode()):08x}"


def test_a_row_that_is_nested_too_deeply_is_refused_when_it_is_written(tmp_path: Path):
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    writer = RowWriter(tmp_path / "m", 0, 0)
    with pytest.raises(InputError, match="nested too deeply"):
        writer.append("t", {"value": value})
    writer.close()
    assert read_rows(tmp_path / "m") == []


def test_several_processes_append_to_one_file_without_breaking_a_line(tmp_path: Path):
    program = (
        "import sys; from pathlib import Path; from tangentlab.bench.row_files import RowWriter\n"
        "w = RowWriter(Path(sys.argv[1]), int(sys.argv[2]), 0)\n"
        "[w.append('t', {'values': [k / 7] * 400}) for k in range(300)]"
    )
    path = tmp_path / "m"
    processes = [subprocess.Popen([sys.executable, "-c", program, str(path), str(seed)]) for seed in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert [count_rows(read_rows(path), seed) for seed in range(3)] == [300, 300, 300]
