"""What do measurements teach?  Reads sweeps of kernels, judges them, and fits profiles."""
