"""What is free: the least of what the machine, the control groups of every level and the process's own limits leave."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tangentlab.engine import memory
from tangentlab.engine.memory import available_bytes

GB = 10**9
UNLIMITED_V1 = 9223372036854771712


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 16 GB free, without control groups."""
    write(
        tmp_path, "proc/meminfo", f"MemTotal:  32000000 kB\nMemFree:   100 kB\nMemAvailable:   {16 * GB // 1024} kB\n"
    )
    memory._limited_groups.cache_clear()
    return tmp_path


def write(root: Path, name: str, text: object) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(f"{text}\n")


def version_2(root: Path, group: str, limit: object, used: int = 0, cache: int = 0, **more: int) -> None:
    folder = f"sys/fs/cgroup{group.rstrip('/')}"
    write(root, f"{folder}/memory.max", limit)
    write(root, f"{folder}/memory.current", used)
    write(root, f"{folder}/memory.stat", f"anon 5\ninactive_file {cache}\nactive_file 77777777777")
    for name, value in more.items():
        write(root, f"{folder}/memory.{name}", value)


def version_1(root: Path, group: str, limit: int, used: int = 0, cache: int = 0, above: int = UNLIMITED_V1) -> None:
    folder = f"sys/fs/cgroup/memory{group.rstrip('/')}"
    write(root, f"{folder}/memory.limit_in_bytes", limit)
    write(root, f"{folder}/memory.usage_in_bytes", used)
    statistics = f"cache 5\ninactive_file 88888888888\nhierarchical_memory_limit {above}\ntotal_inactive_file {cache}"
    write(root, f"{folder}/memory.stat", statistics)


def free(root: Path) -> float:
    """In GB, to a thousandth."""
    return round(available_bytes(root) / GB, 3)


def test_without_limits_the_available_memory_of_the_machine_counts(root: Path) -> None:
    assert free(root) == 16


def test_limits_above_what_is_free_and_groups_without_a_limit_change_nothing(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/a\n0::/a")
    version_2(root, "/a", "max", used=12 * GB)
    version_2(root, "/", "max")
    version_1(root, "/a", UNLIMITED_V1, used=12 * GB)
    assert free(root) == 16


@pytest.mark.parametrize("limited", ["/", "/slice", "/slice/job", "/slice/job/step"])
def test_the_limit_of_any_level_of_version_2_counts(root: Path, limited: str) -> None:
    write(root, "proc/self/cgroup", "0::/slice/job/step")
    for level in ("/", "/slice", "/slice/job", "/slice/job/step"):
        version_2(root, level, 6 * GB if level == limited else "max", used=2 * GB, cache=GB)
    assert free(root) == 5


def test_the_least_of_several_levels_counts_each_with_its_own_use(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/slice/job")
    version_2(root, "/slice/job", 6 * GB, used=1 * GB)
    version_2(root, "/slice", 8 * GB, used=7 * GB)
    assert free(root) == 1


def test_the_throttling_limit_counts_too(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/a")
    version_2(root, "/a", 6 * GB, used=GB, high=4 * GB)
    assert free(root) == 3


@pytest.mark.parametrize("limited", ["/", "/slurm", "/slurm/uid_7", "/slurm/uid_7/job_9", "/slurm/uid_7/job_9/step_0"])
def test_the_limit_of_any_level_of_version_1_counts(root: Path, limited: str) -> None:
    write(root, "proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/slurm/uid_7/job_9/step_0\n1:cpu:/other")
    for level in ("/", "/slurm", "/slurm/uid_7", "/slurm/uid_7/job_9", "/slurm/uid_7/job_9/step_0"):
        version_1(root, level, 6 * GB if level == limited else UNLIMITED_V1, used=2 * GB, cache=GB)
    assert free(root) == 5


def test_a_limit_above_the_visible_groups_is_read_from_the_statistics_of_version_1(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/")
    version_1(root, "/", UNLIMITED_V1, used=2 * GB, above=5 * GB)
    assert free(root) == 3


def test_version_1_beside_an_empty_version_2(root: Path) -> None:
    """As on hybrid systems: the mounts tell where each of them is."""
    write(root, "proc/self/cgroup", "4:memory:/job\n0::/")
    first = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
    write(root, "proc/self/mountinfo", f"31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n{first}\n{unified}")
    version_1(root, "/job", 6 * GB, used=GB)
    assert free(root) == 5
    write(root, "sys/fs/cgroup/unified/memory.max", 2 * GB)
    memory._limited_groups.cache_clear()
    assert free(root) == 2


def test_mounts_in_unusual_places(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/job")
    write(root, "proc/self/mountinfo", "35 31 0:32 / /cgroups/mem rw shared:3 - cgroup none rw,cpuacct,memory")
    write(root, "cgroups/mem/job/memory.limit_in_bytes", 3 * GB)
    assert free(root) == 3


def test_in_a_container_the_mount_shows_the_own_group_as_its_top(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/docker/abc/inner")
    write(root, "proc/self/mountinfo", "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory")
    version_1(root, "/inner", UNLIMITED_V1)
    version_1(root, "/", 6 * GB, used=2 * GB)
    assert free(root) == 4


def test_a_group_that_the_mount_does_not_show_is_taken_for_its_top(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/../outside")
    write(root, "proc/self/mountinfo", "35 31 0:32 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    version_2(root, "/", 6 * GB, used=2 * GB)
    assert free(root) == 4


def test_a_group_that_uses_more_than_its_limit_leaves_nothing(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/")
    version_2(root, "/", GB, used=2 * GB)
    assert available_bytes(root) == 0


def test_use_is_read_every_time_and_limits_every_few_seconds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [101.0]
    monkeypatch.setattr(memory, "monotonic", lambda: moment[0])
    write(root, "proc/self/cgroup", "0::/")
    version_2(root, "/", 6 * GB, used=GB)
    assert free(root) == 5
    version_2(root, "/", 3 * GB, used=2 * GB)
    moment[0] = 109.0
    assert free(root) == 4
    moment[0] = 111.0
    assert free(root) == 1


def test_a_limit_of_zero_leaves_nothing(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/")
    version_2(root, "/", 0, used=0)
    assert free(root) == 0


def test_damaged_files_are_ignored(root: Path) -> None:
    write(root, "proc/self/cgroup", "nonsense\n:::\n0::/")
    write(root, "proc/self/mountinfo", "\nnonsense\n35 31\n - \n - cgroup")
    write(root, "sys/fs/cgroup/memory.max", "")
    assert free(root) == 16


_UNDER_A_LIMIT = """
import json, resource
limit = {limit}
resource.setrlimit(resource.{kind}, (limit, resource.RLIM_INFINITY))
import torch, tangentlab as tl
from tangentlab.engine import memory
from tangentlab.engine.memory import available_bytes
before = available_bytes()
held = torch.zeros(10**8, dtype=torch.uint8)
after = available_bytes()
model, x = torch.nn.Linear(60_000, 1), torch.randn(2, 60_000)
try:
    tl.FIM(model, x, tl.PMatDense, "regression")
    refusal = ""
except tl.errors.MemoryBudgetError as error:
    refusal = str(error)
print(json.dumps({{"before": before, "after": after, "limit": limit, "refusal": refusal}}))
"""


@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_the_limits_of_the_process_count_and_large_results_are_refused_under_them(kind: str) -> None:
    script = _UNDER_A_LIMIT.format(limit=6 * GB, kind=kind)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)
    assert GB < found["before"] < found["limit"]
    assert 0.9e8 < found["before"] - found["after"] < 2e8
    assert "needs 14.4 GB" in found["refusal"]
