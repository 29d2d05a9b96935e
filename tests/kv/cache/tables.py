"""Block tables at random, and the tokens that they stand for."""

from collections.abc import Sequence

from hypothesis import strategies as st

from ksim.kv.cache import BlockTable
from tests.kv.cache.naive_tokens import Tokens

LONGEST = 60

contents = st.lists(st.sampled_from("aab"), max_size=8)
units = st.sampled_from([1, 1, 3])


def table_of(content: Sequence[str], unit: int, cut: int) -> BlockTable:
    """A block table for *content*, whose last name stands for *cut* tokens fewer."""
    return BlockTable(content, unit, max(0, len(content) * unit - min(cut, unit - 1)))


def text(table: BlockTable, number: int) -> Tokens:
    size = table.tokens_per_name
    return tuple((size, table.content[position // size]) if position < table.named_tokens else (number, "own")
                 for position in range(LONGEST))
