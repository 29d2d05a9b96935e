"""What actions cost on a GPU, learned from kernels whose power was measured while they ran back to back."""
