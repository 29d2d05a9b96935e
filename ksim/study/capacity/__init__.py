"""Capacity: the load that a set-up carries within its latency targets, with an interval (docs/capacity.md)."""
