"""Send a request with msglite, and reply to it from a second connection."""

import asyncio
import sys

from sluicemq.clients.msglite import DEFAULT_PORT, MsgliteClient

QUEUE = "example-uppercase"
REPLY_TIMEOUT = 30
"""Seconds that requests and replies wait for their receiver."""


async def serve(port: int) -> None:
    """Reply to one request."""
    async with await MsgliteClient.connect(port=port) as server:
        request = await server.ready(QUEUE, timeout=REPLY_TIMEOUT)
        if request is None or request.reply_to is None:
            raise SystemExit(f"no request arrived in {REPLY_TIMEOUT} s")
        await server.send(request.reply_to, request.body.upper(), timeout=REPLY_TIMEOUT)


async def main(port: int) -> None:
    server = asyncio.create_task(serve(port))
    async with await MsgliteClient.connect(port=port) as client:
        reply = await client.query(QUEUE, b"hello", timeout=REPLY_TIMEOUT)
    await server
    print("reply:", reply.body.decode() if reply else "none")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_PORT))
