"""Decoding of captured traffic to a table of frames, with the server's own codecs.

captures     pcap and pcapng to packets                      codecs  the protocols
tcp          packets to segments to bytes                    flow    bytes to frames
connections  a file to rows; detection of the protocol       run     Spark, and the command's output
columns      the table
"""

from __future__ import annotations

from sluicemq.pipeline.decode.columns import FRAMES
from sluicemq.pipeline.decode.options import DecodeOptions, Raw, parse_ports
from sluicemq.pipeline.decode.run import Summary, decode, run

__all__ = ["FRAMES", "DecodeOptions", "Raw", "Summary", "decode", "parse_ports", "run"]
