"""Wire protocols, one package each: wire, mapping, session and client modules."""
