"""How fast ksim is: CPU seconds and memory of fixed workloads, beside a yardstick for the machine."""

import os

from ksim.foundation.folders import OFF, VARIABLE

# Only `prices` measures what earlier runs have left: else the second of three runs would be another than the first.
os.environ[VARIABLE] = OFF
