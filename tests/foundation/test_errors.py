"""Errors a user can cause: their words, and that they survive being passed on."""

import pytest
import simpy

from ksim.foundation.errors import ConfigError, DataError, DoesNotFit, UnknownName

ERRORS = [ConfigError("s.toml: seed", "expected a whole number"), DataError("t.csv:3", "is not a row"),
          UnknownName("model", "lama", ["llama", "qwen"]), DoesNotFit("too large")]


def test_an_unknown_name_suggests_the_nearest():
    assert str(ERRORS[2]) == "no model named 'lama'; did you mean 'llama'? (model: llama, qwen)"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_can_be_made_again_from_its_arguments(error):
    assert str(type(error)(*error.args)) == str(error)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_in_a_process_leaves_the_simulation_as_it_is(error):
    """SimPy makes a new exception from the old one's arguments."""
    def fails(env):
        yield env.timeout(1)
        raise error

    env = simpy.Environment()
    env.process(fails(env))
    with pytest.raises(type(error)) as caught:
        env.run()
    assert str(caught.value) == str(error)
