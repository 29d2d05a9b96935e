"""How is it shown?  Reports, plots, Perfetto traces, and the result of a run as a whole."""
