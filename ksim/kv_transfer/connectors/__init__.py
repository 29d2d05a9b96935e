"""Connectors, one file each: what moves when between a prefill and a decode engine, by the rules of a library."""
