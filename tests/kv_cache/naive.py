"""The naive model of the public kit, under the name that the tests of the cache use."""

from ksim.testing.naive import NaiveCache, NaiveRequest, Prefix

__all__ = ["NaiveCache", "NaiveRequest", "Prefix"]
