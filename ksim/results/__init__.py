"""How good was it?  Metrics, tables and attribution of a run, from its log alone."""
