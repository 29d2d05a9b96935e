"""The engine's loop of the public kit, under the name that the tests of the scheduler use."""

from ksim.testing.loop import ROOMY, Loop, loop

__all__ = ["ROOMY", "Loop", "loop"]
