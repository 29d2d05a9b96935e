"""Measured kernels to fitted efficiencies: reading sweeps, judging them, fitting profiles."""
