"""What is simulated?  Frozen descriptions of hardware, hosts, engines and their settings."""
