"""Decoding of captured traffic to a table of frames, with the server's own codecs.

captures  a file to packets to segments of TCP
codecs    the protocols, the columns, and options
streams   segments to bytes to frames to rows; detection of the protocol
run       Spark, and the command's output
"""

from __future__ import annotations

from sluicemq.pipeline.decode.codecs import FRAMES, DecodeOptions, Raw, parse_ports
from sluicemq.pipeline.decode.run import Summary, decode, run

__all__ = ["FRAMES", "DecodeOptions", "Raw", "Summary", "decode", "parse_ports", "run"]
