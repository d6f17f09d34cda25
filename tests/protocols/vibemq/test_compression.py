from __future__ import annotations

import gzip
import tracemalloc
import zlib
from contextlib import suppress

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.protocols.vibemq.compression import (
    SUPPORTED,
    Compression,
    Unpacker,
    algorithm_names,
    compress,
    negotiate,
)

BOTH = [Compression.GZIP, Compression.BROTLI]
TEXT = b"a text that says the same, " * 100


def packed(body: bytes, how: Compression) -> bytes:
    if how is Compression.GZIP:
        return gzip.compress(body, 1, mtime=0)
    return bytes(brotli.compress(body, quality=1, lgwin=22))


def decompress(data: bytes, flag: int, limit: int) -> bytes:
    unpacker = Unpacker(data, flag, limit)
    assert unpacker.unpack(limit)
    return unpacker.body()


@pytest.mark.parametrize(
    ("offered", "supported", "chosen"),
    [
        ("brotli,gzip", SUPPORTED, Compression.BROTLI),
        ("gzip,brotli", SUPPORTED, Compression.GZIP),
        ("brotli,gzip", [Compression.GZIP], Compression.GZIP),
        ("brotli", [Compression.GZIP], Compression.NONE),
        (" BROTLI , GZip", [Compression.GZIP], Compression.GZIP),
        ("none,zstd,,gzip", SUPPORTED, Compression.GZIP),
        ("none", [*SUPPORTED, Compression.NONE], Compression.NONE),
        ("", SUPPORTED, Compression.NONE),
        ("brotli,gzip", [], Compression.NONE),
    ],
)
def test_negotiates_first_supported_algorithm_of_client(
    offered: str, supported: list[Compression], chosen: Compression
) -> None:
    assert negotiate(offered, supported) is chosen


def test_names_of_algorithms() -> None:
    assert algorithm_names(SUPPORTED) == "brotli,gzip"
    assert algorithm_names([Compression.NONE]) == algorithm_names([]) == ""


@pytest.mark.parametrize("how", BOTH)
def test_lowest_level_if_body_fits_uncompressed(how: Compression) -> None:
    data = compress(TEXT, how, len(TEXT))
    assert data is not None
    assert len(data) < len(TEXT) // 10
    assert decompress(data, how, len(TEXT)) == TEXT


@pytest.mark.parametrize("how", BOTH)
def test_higher_level_only_if_required_to_fit(how: Compression) -> None:
    text = b" ".join(b"%x" % (n * 2654435761 % 997) for n in range(60_000))
    first = compress(text, how, len(text))
    assert first is not None
    fitted = compress(text, how, len(first) - 1)
    assert fitted is not None
    assert len(fitted) < len(first)
    assert compress(text, how, 1000) is None


def test_gzip_has_header_and_trailer() -> None:
    data = compress(TEXT, Compression.GZIP, len(TEXT))
    assert data is not None
    assert gzip.decompress(data) == TEXT


@pytest.mark.parametrize("how", BOTH)
def test_no_compression_without_gain(how: Compression) -> None:
    assert compress(b"short", how, 1000) is None
    assert compress(b"", how, 1000) is None


@given(st.binary(max_size=3000), st.sampled_from(BOTH))
def test_there_and_back(body: bytes, how: Compression) -> None:
    assert decompress(packed(body, how), how, len(body)) == body
    data = compress(body * 3, how, 9000)
    if data is not None:
        assert len(data) < len(body) * 3
        assert decompress(data, how, len(body) * 3) == body * 3


@pytest.mark.parametrize("how", BOTH)
def test_bomb_is_stopped_at_limit(how: Compression) -> None:
    bomb = packed(bytes(64 << 20), how)
    tracemalloc.start()
    try:
        with pytest.raises(FrameTooLarge, match="longer than 1048576 bytes"):
            decompress(bomb, how, 1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("how", BOTH)
@pytest.mark.parametrize("size", [0, 1, 1000, 65_536, 1 << 20])
def test_limit_is_inclusive(how: Compression, size: int) -> None:
    data = packed(bytes(size), how)
    assert decompress(data, how, size) == bytes(size)
    if size:
        with pytest.raises(FrameTooLarge):
            decompress(data, how, size - 1)


@pytest.mark.parametrize("how", BOTH)
def test_truncated_data_is_refused(how: Compression) -> None:
    data = packed(TEXT, how)
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            decompress(data[:size], how, 10_000)


@pytest.mark.parametrize("how", BOTH)
def test_trailing_data_is_refused(how: Compression) -> None:
    for rest in (b"x", b"\0", b"\x1f\x8b"):
        with pytest.raises(ProtocolError):
            decompress(packed(TEXT, how) + rest, how, 10_000)


def test_gzip_body_of_several_members_is_accepted() -> None:
    members = packed(b"one ", Compression.GZIP) + packed(b"two", Compression.GZIP)
    assert decompress(members, Compression.GZIP, 7) == b"one two"
    with pytest.raises(FrameTooLarge):
        decompress(members, Compression.GZIP, 6)
    with pytest.raises(ProtocolError, match="members"):
        decompress(packed(b"", Compression.GZIP) * 40_000, Compression.GZIP, 10)


def test_wrong_checksum_is_refused() -> None:
    data = bytearray(packed(TEXT, Compression.GZIP))
    data[-5] ^= 1
    with pytest.raises(ProtocolError, match="gzip"):
        decompress(bytes(data), Compression.GZIP, 10_000)


def test_zlib_and_raw_deflate_are_not_gzip() -> None:
    for window in (zlib.MAX_WBITS, -zlib.MAX_WBITS):
        with pytest.raises(ProtocolError):
            decompress(zlib.compress(TEXT, 1, window), Compression.GZIP, 10_000)


def test_uncompressed_body_is_returned_unchanged() -> None:
    assert decompress(b"as it is", 0, 8) == b"as it is"
    assert not Unpacker(b"as it is", 0, 8).unpack(7)


@given(st.binary(max_size=200), st.sampled_from(BOTH), st.integers(0, 100))
def test_anything(data: bytes, how: Compression, limit: int) -> None:
    for attempt in (data, packed(TEXT, how)[:20] + data):
        with suppress(ProtocolError):
            assert len(decompress(attempt, how, limit)) <= limit
