"""Prices that many runs share: kept on disk by all that they follow from."""
