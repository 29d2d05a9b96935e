"""The share of a GPU's peaks that kernels reach: physics from data sheets, and models fitted to measurements."""
