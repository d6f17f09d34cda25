"""VibeMQ 1.1: publish and subscribe in length-prefixed binary frames that carry JSON."""
