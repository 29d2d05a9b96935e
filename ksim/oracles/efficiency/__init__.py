"""What share of a GPU's bounds kernels reach: physics without a dimension, and models fitted to measurements."""
