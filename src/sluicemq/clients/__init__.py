"""Python clients of the protocols."""
