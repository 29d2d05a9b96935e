"""The energy of a kernel's actions on a GPU, fitted to kernels whose power was measured while they ran back to back."""
