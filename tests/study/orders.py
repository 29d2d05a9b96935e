"""Runs of a study that end in the worst order that processes could give them."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def backwards(_: object, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Do as `Workers.run`: the last item ends first.  What goes to a process and back is pickled here, too."""
    done = [pickle.loads(pickle.dumps(item)) for item in items]
    sent = pickle.loads(pickle.dumps(work))
    for place in reversed(range(len(done))):
        yield place, pickle.loads(pickle.dumps(sent(done[place])))
