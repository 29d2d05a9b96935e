"""What should be tried?  Scenarios, and everything they name made real."""
