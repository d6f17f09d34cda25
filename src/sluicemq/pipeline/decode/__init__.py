"""Captured traffic -> a table of frames, by the server's own codecs.

options        what can be chosen                 exchanges, codecs   what frames say, by protocol
captures       pcap and pcapng -> packets         recognition         which protocol it is
headers        packets -> TCP segments            flow                bytes -> frames
connections    segments -> notes by connection    conversation        a connection -> rows
reassembly     notes -> bytes in order            tasks, frames       the two steps, and Spark
payload        bytes, read from the file          summary             what the command line prints
"""

from __future__ import annotations

from sluicemq.pipeline.decode.columns import FRAMES
from sluicemq.pipeline.decode.frames import decode
from sluicemq.pipeline.decode.options import Options, Raw, parse_ports
from sluicemq.pipeline.decode.summary import Summary, run

__all__ = ["FRAMES", "Options", "Raw", "Summary", "decode", "parse_ports", "run"]
