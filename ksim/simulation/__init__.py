"""What should be tried?  Scenarios, the deployments that they describe, and runs of them."""
