"""Tests keep nothing in the folder of the one who runs them, and properties follow one profile."""

import os

from ksim.foundation.folders import OFF, VARIABLE
from tests.properties import load_profile

os.environ[VARIABLE] = OFF  # for processes that tests start, too
load_profile()
