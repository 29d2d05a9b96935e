"""How does a scenario run?  Its fleet, the engines of it, and the run from the first event to the last."""
