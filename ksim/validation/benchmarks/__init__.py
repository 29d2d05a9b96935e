"""Results of benchmark clients beside simulations: how far a deployment is from its simulation, and what differs."""
