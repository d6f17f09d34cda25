"""Decoding speed of captures in MB and frames per second, for each protocol.

    python -m benchmarks.pipeline_decode [--megabytes 200] [--spark]

Creates a capture of 1 KB messages in 8 connections with packets of 1,460 bytes, then decodes it in
this process on one core; rates are per second of processor time. `--spark` also decodes it in a
local Spark session; rates are per second of elapsed time.
"""

from __future__ import annotations

import argparse
import resource
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sluicemq.pipeline.decode import DecodeOptions
from sluicemq.pipeline.decode.streams import decode_file
from sluicemq.protocols.jmq.fields import encode_header
from sluicemq.protocols.jmq.packets import PacketType, Q
from sluicemq.protocols.jmq.wire import encode_packet
from sluicemq.protocols.msglite.wire import encode_message
from sluicemq.protocols.phpmq.wire import encode_send
from sluicemq.protocols.vibemq import wire as vibemq

BODY: Final = b"x" * 1024
CONNECTIONS: Final = 8
MSS: Final = 1460

Make = Callable[[int], bytes]


def _vibemq_publish(number: int) -> bytes:
    return vibemq.encode(vibemq.Frame(vibemq.PUBLISH, f"{number:032x}", "orders", BODY))


FRAMES: Final[dict[str, tuple[int, Make]]] = {
    "phpmq": (9100, lambda number: encode_send(b"orders", BODY)),
    "msglite": (9813, lambda number: encode_message(60, b"orders", BODY)),
    "vibemq": (2925, _vibemq_publish),
    "jmq": (
        7676,
        lambda number: encode_packet(
            PacketType.TEXT_MESSAGE, Q, number, None, encode_header("orders"), BODY
        ),
    ),
}

_record: Final = struct.Struct("<IIII")
_ip: Final = struct.Struct(">BBHHHBBH4s4s")
_tcp: Final = struct.Struct(">HHIIBBHHH")


def write(path: Path, port: int, make: Make, size: int) -> int:
    """Write a capture of about `size` bytes; return its number of frames."""
    frames = 0
    with path.open("wb", 1 << 20) as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 1))
        sequences = [1000] * CONNECTIONS
        waiting = [b""] * CONNECTIONS
        for number in range(CONNECTIONS):
            file.write(packet(number, port, 999, b"", 2, 0))
        clock = 0
        while file.tell() < size:
            for number in range(CONNECTIONS):
                data = waiting[number]
                while len(data) < 64 << 10:
                    data += make(frames + 1)
                    frames += 1
                while len(data) >= MSS:
                    clock += 10
                    file.write(packet(number, port, sequences[number], data[:MSS], 16, clock))
                    sequences[number] += MSS
                    data = data[MSS:]
                waiting[number] = data
        for number in range(CONNECTIONS):
            file.write(packet(number, port, sequences[number], waiting[number], 16, clock))
    return frames


def packet(number: int, port: int, sequence: int, data: bytes, flags: int, clock: int) -> bytes:
    tcp = _tcp.pack(30_000 + number, port, sequence & 0xFFFF_FFFF, 0, 80, flags, 65_535, 0, 0)
    ip = _ip.pack(0x45, 0, 40 + len(data), 0, 0, 64, 6, 0, b"\x0a\0\0\x01", b"\x0a\0\0\x02")
    content = bytes(12) + b"\x08\x00" + ip + tcp + data
    seconds, fraction = divmod(clock, 1_000_000)
    return _record.pack(1_700_000_000 + seconds, fraction, len(content), len(content)) + content


def here(path: Path) -> tuple[float, int]:
    """Return the CPU seconds to decode the file, and the frames."""
    before = time.process_time()
    rows = sum(map(len, decode_file(str(path), DecodeOptions())))
    return time.process_time() - before, rows


def by_spark(path: Path) -> tuple[float, int]:
    """Return the seconds of the second run (the first one starts the workers), and the frames."""
    from sluicemq.pipeline.decode import decode
    from sluicemq.pipeline.session import session

    spark = session("decode benchmark")
    frame = decode(spark, [path])
    for _ in range(2):
        before = time.perf_counter()
        rows = frame.selectExpr("sum(length)", "count(*)").collect()[0][1]
        seconds = time.perf_counter() - before
    return seconds, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--spark", action="store_true")
    arguments = parser.parse_args()
    print(f"{'protocol':<10}{'MB':>6}{'frames/s':>12}{'MB/s':>9}{'peak MB':>9}")
    with tempfile.TemporaryDirectory(prefix="sluicemq-decode-") as directory:
        path = Path(directory) / "traffic.pcap"
        for protocol, (port, make) in FRAMES.items():
            frames = write(path, port, make, arguments.megabytes * 1_000_000)
            size = path.stat().st_size / 1e6
            seconds, rows = here(path)
            assert rows == frames, f"{rows} rows of {frames} frames"
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{protocol:<10}{size:>6.0f}{frames / seconds:>12,.0f}{size / seconds:>9.0f}"
                f"{peak:>9.0f}"
            )
            if arguments.spark:
                seconds, rows = by_spark(path)
                assert rows == frames, f"{rows} rows of {frames} frames"
                print(f"{'  by Spark':<16}{frames / seconds:>12,.0f}{size / seconds:>9.0f}")


if __name__ == "__main__":
    main()
