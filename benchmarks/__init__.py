"""How fast ksim is: CPU seconds and memory of fixed workloads, beside a yardstick for the machine."""
