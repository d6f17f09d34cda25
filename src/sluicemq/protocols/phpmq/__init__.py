"""PHPMQ version 1: a message broker protocol of fixed-width text headers."""
