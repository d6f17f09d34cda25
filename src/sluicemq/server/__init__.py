"""The running broker: listeners, back-pressure, configuration and life cycle (asyncio, uvloop)."""
