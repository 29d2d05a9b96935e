"""Properties follow one profile."""

from tests.properties import load_profile

load_profile()
