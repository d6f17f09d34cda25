"""The wire protocols, one room each, with the same furniture: wire, mapping, session, client."""
