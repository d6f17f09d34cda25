"""Decoding of captured traffic to a table of frames, with the server's own codecs.

options        decoding options                   exchanges, codecs   protocols
captures       pcap and pcapng to packets         recognition         detection of the protocol
headers        packets to TCP segments            flow                bytes to frames
connections    segments to notes by connection    conversation        a connection to rows
reassembly     notes to bytes in order            tasks, frames       the two steps, and Spark
payload        bytes, read from the file          summary             the command's output
"""

from __future__ import annotations

from sluicemq.pipeline.decode.columns import FRAMES
from sluicemq.pipeline.decode.frames import decode
from sluicemq.pipeline.decode.options import DecodeOptions, Raw, parse_ports
from sluicemq.pipeline.decode.summary import Summary, run

__all__ = ["FRAMES", "DecodeOptions", "Raw", "Summary", "decode", "parse_ports", "run"]
