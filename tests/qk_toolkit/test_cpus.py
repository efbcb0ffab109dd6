"""CPUs that a process may use: affinity, and the quota of its container."""

import os

import pytest

from attention_plasticity.config import make_config
from qk_toolkit.cpus import available_cpus, quota_cpus


def cgroup(root, own, files):
    """A fake cgroup file system, and the process's own place in it."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (root.parent / "own").write_text(own)
    return root, root.parent / "own"


V1 = "12:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n0::/docker/x\n"


def v1(folder, quota):
    names = (f"{folder}/cpu.cfs_quota_us", f"{folder}/cpu.cfs_period_us")
    return dict(zip(names, (f"{quota}\n", "100000\n"), strict=True))


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "100000 50000", "a/cpu.max": "900000 100000"}, 2),
        ("0::/../../escaped\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "garbage"}, None),
        ("0::/\n", {"cpu.max": "1 0"}, None),
        ("", {"cpu.max": "100000 100000"}, None),
        ("nonsense\n\0\n", {"cpu.max": "100000 100000"}, None),
        (V1, v1("cpu/docker/x", "250000"), 2),
        (V1, v1("cpu,cpuacct", "150000"), 1),  # the host's path, the container's mount
        (V1, v1("cpu", "-1"), None),
    ],
)
def test_a_quota_is_read_from_the_cgroups(tmp_path, own, files, expected):
    assert quota_cpus(*cgroup(tmp_path / "root", own, files)) == expected


def test_the_smaller_of_affinity_and_quota_counts(tmp_path):
    allowed = os.sched_getaffinity(0)
    assert available_cpus(tmp_path, tmp_path / "none") == len(allowed)
    many = cgroup(tmp_path / "a" / "root", "0::/\n", {"cpu.max": "9900000 100000"})
    assert available_cpus(*many) == len(allowed)
    one = cgroup(tmp_path / "b" / "root", "0::/\n", {"cpu.max": "150000 100000"})
    assert available_cpus(*one) == 1
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert available_cpus(*many) == 1
        assert make_config().workers == 1
        assert make_config(max_workers=5).workers == 5
    finally:
        os.sched_setaffinity(0, allowed)
