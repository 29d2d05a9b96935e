"""How close is ksim to reality?  Recorded behaviour, simulated again and compared."""
