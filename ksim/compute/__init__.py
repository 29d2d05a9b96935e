"""What must be computed?  From a model's einsums and a batch to the kernels each rank launches."""
