"""How good was it?  Metrics, tables, plots and traces of a run, from its log alone."""
