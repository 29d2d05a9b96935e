"""Tests keep nothing in the folder of the one who runs them."""

import os

from ksim.foundation.folders import OFF, VARIABLE

os.environ[VARIABLE] = OFF  # for processes that tests start, too
