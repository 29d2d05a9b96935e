"""The block tables of one request, one for each group of layers, and where it is recorded in the tree."""

from collections.abc import Sequence

from attrs import define, field

from ksim.kv_cache.cache import BlockTable
from ksim.kv_cache.group_table import NEVER, FindNode, GroupTable, Places, StateTable
from ksim.kv_cache.hybrid_pool import PrefixNode


@define(eq=False)
class HybridTable(BlockTable):
    """The block tables of one request, one for each group; `content` has a name for each unit of tokens.

    `path` are the nodes of the tree up to where the request is recorded.  `prompt` counts its prompt's tokens.  After
    the first `shared` tokens, nothing enters the cache that others can use.  `kept` are the places, by group, that
    enter it.  `junction` is the longest prefix that some group knew at the latest lookup, if it is longer than the hit.

    A scheduler keeps `in_flight`, the tokens of batches that are not back, and says in `processed` how many tokens are
    computed and back.  There is `room` for so many tokens, and nothing is out of reach before `reach` are processed.
    """

    groups: list[GroupTable] = field(factory=list)
    path: list[PrefixNode] = field(factory=list)
    kept: list[Sequence[Places]] = field(factory=list)
    prompt: int = 0
    shared: int = 0
    junction: int = 0
    in_flight: int = 0
    processed: int = 0
    room: int = 0
    reach: int = NEVER

    def note_change(self) -> None:
        """Update `room` and `reach` after a change in the tables of groups."""
        self.room = min(own.room for own in self.groups)
        self.reach = min(own.reach for own in self.groups)

    def enter(self, root: PrefixNode, full: int) -> list[PrefixNode]:
        """Let what is worth it of the first *full* tokens enter the cache; return where its states are found."""
        named, states = len(self.content) * self.tokens_per_name, list[PrefixNode]()
        self.record(root, min(full // self.tokens_per_name, len(self.content)))
        for own, kept in zip(self.groups, self.kept, strict=True):
            size = own.group.block_tokens
            nodes = own.enter(full // size, kept, max(named // size, own.entered), self.finder(size))
            if own.group.kind == "state":
                states += nodes
        return states

    def reveal(self, root: PrefixNode) -> None:
        """Record what only the request can find: it may be admitted again."""
        ends = [own.private[-1][1] * own.group.block_tokens for own in self.groups if own.private]
        self.record(root, max(ends, default=0) // self.tokens_per_name)
        for own in self.groups:
            own.reveal(self.finder(own.group.block_tokens))

    def note_checkpoints(self, tokens: int, alignment: int, prefill_end: int) -> None:
        """Note which groups keep a state amid the chunk that needs slots for *tokens* tokens, if the prefill ends with
        it."""
        start = self.processed + self.in_flight
        for own in self.groups:
            if isinstance(own, StateTable):
                end = tokens - own.group.lookahead  # where the chunk itself ends
                own.amid = end >= prefill_end and own.group.keeps_amid(
                    start, end, (end - 1) // alignment * alignment, self.tokens_per_name)

    def record(self, root: PrefixNode, units: int) -> None:
        """Record in the tree under *root* that the request begins with its first *units* units."""
        path, first = self.path, len(self.path)
        if units <= first:
            return
        node = path[-1] if path else root
        for name in self.block_names(first, units):
            node = node.child(name)
            path.append(node)
        node.pins += 1
        if first:
            path[first - 1].pins -= 1

    def forget_path(self) -> None:
        """Let the tree forget what only the request needed."""
        if self.path:
            self.path[-1].pins -= 1
            self.path[-1].prune()
            self.path = []

    def finder(self, block_tokens: int) -> FindNode:
        """Where the blocks of a group with blocks of *block_tokens* tokens are found."""
        path, units = self.path, block_tokens // self.tokens_per_name
        return lambda place: path[(place + 1) * units - 1]
