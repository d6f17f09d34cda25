from __future__ import annotations

from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.packets import PacketType, Status


def test_reply_type_follows_its_request_type() -> None:
    for kind in PacketType:
        if kind.name.endswith("_REPLY") and kind is not PacketType.SEND_REPLY:
            assert kind == PacketType[kind.name.removesuffix("_REPLY")] + 1


def test_packet_numbers_that_differ_from_specification() -> None:
    assert (PacketType.INFO_REQUEST, PacketType.INFO) == (72, 73)
    assert (PacketType.VERIFY_TRANSACTION, PacketType.VERIFY_TRANSACTION_REPLY) == (78, 79)
    assert PacketType.SET_CLIENTID_REPLY == 51
    assert PacketType.RECOVER_TRANSACTION_REPLY == 61
    assert Status.INVALID_LOGIN == 413
    assert 80 not in set(PacketType)


def test_flags_are_bits_in_specification_order() -> None:
    assert [getattr(packets, flag) for flag in "QRPSALFTCBZIW"] == [1 << n for n in range(13)]
