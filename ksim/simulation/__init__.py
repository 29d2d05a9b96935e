"""How does a scenario run?  Its deployment, its result, and comparisons of settings, layers and GPUs."""
