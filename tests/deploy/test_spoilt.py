"""A spoilt manifest is read or refused, and never anything else: no crash, and no message of several lines."""

import random

from hypothesis import given
from hypothesis import strategies as st

from ksim.deploy.assembly.scenario import assembled
from ksim.deploy.importing import read
from ksim.deploy.launches import Wanted
from ksim.deploy.texts.pasted import Pasted
from ksim.foundation.errors import KsimError
from ksim.simulation.scenario import Scenario
from tests.deploy.texts import BETA, CONFIG, DEPLOYMENT, GRAPH, PICKER, SCRIPT, SERVICE, VALUES, row
from tests.properties import examples

TEXTS = (DEPLOYMENT, SCRIPT, f"{DEPLOYMENT}---\n{SERVICE}", VALUES, VALUES + PICKER, GRAPH, BETA, CONFIG, row())
STRANGE = ("[]", "{}", "null", "''", "-1", "1e9", "[1, 2]", "{a: b}", "true", "!!binary x", "2026-01-01", "0x10", "*x",
           "$(X)", "${X", "|\n  x", ".inf", "- - -", "? a", "{{ x }}", "\x07", "nan", "9" * 400)


def spoilt(text: str, chance: random.Random) -> str:
    """*text* with one to three lines cut, doubled, given another value or a stray sign."""
    for _ in range(chance.randint(1, 3)):
        lines = text.split("\n")
        place = chance.randrange(len(lines))
        words = lines[place].split(" ")
        words[chance.randrange(len(words))] = chance.choice(STRANGE)
        cut = chance.randrange(len(lines[place]) + 1)
        sign = chance.choice("{}[]:\"'$&*#|>%@`,\t -")
        lines[place:place + 1] = chance.choice((
            [], [lines[place], chance.choice(lines)], [lines[place].partition(":")[0] + ": " + chance.choice(STRANGE)],
            [" ".join(words)], [lines[place][:cut] + sign + lines[place][cut:]]))
        text = "\n".join(lines) or " "
    return text


@given(st.sampled_from(TEXTS), st.randoms(use_true_random=False), st.sampled_from([None, "h200"]))
@examples(240)
def test_a_spoilt_manifest_is_read_or_refused(text, chance, gpu):
    wanted = Wanted(gpu=gpu)
    try:
        Scenario.of(assembled(read(Pasted(spoilt(text, chance), "f.yaml"), wanted), wanted).table)
    except KsimError as error:
        assert str(error) and "\n" not in str(error)
