"""Typed tables: columns of the customer's own data, declared per destination in `pipeline.toml`."""
