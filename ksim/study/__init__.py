"""Many runs of one scenario, and what they answer together."""
