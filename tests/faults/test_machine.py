"""The simulated disk of a faulty machine."""

from __future__ import annotations

import os
from pathlib import Path

from tests.faults.machine import FaultyDisk


def test_file_with_descriptor_of_closed_file_does_not_have_its_unsynced_data(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    disk.volatile = True
    descriptors = []
    for name in ("a.segment", "b.segment"):
        fd = os.open(tmp_path / name, os.O_RDWR | os.O_CREAT)
        descriptors.append(fd)
        assert disk.pread(fd, 10, 0) == b""
        disk.pwrite(fd, b"data", 0)
        assert disk.pread(fd, 10, 0) == b"data"
        disk.close(fd)
    assert descriptors[0] == descriptors[1]
    assert [(tmp_path / name).read_bytes() for name in ("a.segment", "b.segment")] == [b"", b""]
