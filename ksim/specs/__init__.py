"""What is simulated?  Frozen descriptions of hardware, deployment and host."""
