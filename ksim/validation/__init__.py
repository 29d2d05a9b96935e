"""Is it as in reality?  Recorded schedules, kernels, runs and energy, played again and compared."""
