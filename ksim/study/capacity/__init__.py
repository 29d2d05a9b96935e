"""How much load a set-up carries within its latency targets, and how sure that is: docs/capacity.md."""
