"""Launches to a scenario: roles, pools, nodes, what a single engine cannot have, and the commented text."""
