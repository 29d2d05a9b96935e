"""What may limit a kernel, and the codes of that in columns."""

__all__ = ["BOUNDS", "COMPUTE", "LAUNCH", "MEMORY"]

#: What limits a kernel or a collective, in the order of output columns; a name's place is its code.
BOUNDS = ("compute", "memory", "launch", "communication")
COMPUTE, MEMORY, LAUNCH = range(3)
