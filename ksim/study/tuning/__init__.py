"""Tuning: the settings of a scenario that are best in some objectives, found by running few of them."""
