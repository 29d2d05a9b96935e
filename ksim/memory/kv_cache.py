"""The KV cache of one engine: who holds which blocks, and which of them others can use."""

from collections.abc import Hashable, Iterator, Sequence

from attrs import define, field

from ksim.memory.blocks import BlockPool
from ksim.memory.radix import Node, PrefixTree


@define(eq=False)
class Holding:
    """What one request holds: `blocks` in the order of its tokens, the first `entered` of them in the tree.

    `content` names the full blocks whose tokens others may have as well; what
    comes after them is this request's alone.
    """

    content: Sequence[Hashable] = ()
    blocks: list[int] = field(factory=list)
    entered: int = 0
    node: Node | None = None

    def names(self, first: int, end: int) -> Iterator[Hashable]:
        """The names of blocks *first* to *end* - 1.  Below a name that is only its own, a request need but count."""
        covered = len(self.content)
        for index in range(first, end):
            if index < covered:
                yield self.content[index]
            else:
                yield self if index == covered else index


@define
class KVCache:
    """`capacity` blocks of `block_tokens` tokens; without `prefix_caching`, nothing is ever found again."""

    capacity: int
    block_tokens: int
    prefix_caching: bool = True
    pool: BlockPool = field(init=False)
    tree: PrefixTree = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.pool = BlockPool(self.capacity)
        self.tree = PrefixTree(self.capacity)

    def blocks(self, tokens: int) -> int:
        """How many blocks hold *tokens* tokens."""
        return -(-tokens // self.block_tokens)

    def lookup(self, holding: Holding, known: int) -> list[Node]:
        """The cached blocks from which a request of *known* tokens can start.  Changes nothing.

        The last known token is always computed again: its logits are what is sampled from.
        """
        if not self.prefix_caching:
            return []
        return self.tree.match(holding.names(0, (known - 1) // self.block_tokens))

    def fits(self, hits: Sequence[Node], tokens: int, spare: int = 0) -> bool:
        """Whether *tokens* tokens that begin with *hits* could be held, *spare* blocks staying free."""
        users = self.pool.users
        revived = sum(users[node.blocks[0]] == 0 for node in hits)
        return self.blocks(tokens) - len(hits) + revived + spare <= self.pool.free

    def open(self, holding: Holding, hits: Sequence[Node]) -> None:
        """Let *holding* start from *hits*."""
        assert not holding.blocks, "a request that holds blocks was admitted again"
        holding.blocks = [node.blocks[0] for node in hits]
        for block in holding.blocks:
            self.pool.share(block)
        holding.entered = len(hits)
        holding.node = hits[-1] if hits else self.tree.root

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Have *holding* hold *tokens* tokens in all, at the cost of what is free; all or nothing."""
        missing = self.blocks(tokens) - len(holding.blocks)
        if missing > self.pool.free:
            return False
        for _ in range(missing):
            block = self.pool.take()
            self.tree.forget(block)
            holding.blocks.append(block)
        return True

    def enter(self, holding: Holding, tokens: int) -> None:
        """Make the full blocks among the first *tokens* tokens of *holding* findable."""
        if not self.prefix_caching:
            return
        full, node = tokens // self.block_tokens, holding.node
        if full <= holding.entered:
            return
        assert node is not None, "a request without blocks cannot share them"
        names = holding.names(holding.entered, full)
        for block, name in zip(holding.blocks[holding.entered: full], names, strict=True):
            node = self.tree.enter(node, name, block)
        holding.entered, holding.node = full, node

    def close(self, holding: Holding) -> None:
        """Give back all that *holding* holds, last block first."""
        plain: list[int] = []
        findable: list[int] = []
        for block in reversed(holding.blocks):
            if self.pool.leave(block):
                (findable if self.tree.holds(block) else plain).append(block)
        self.pool.to_front(plain)
        self.pool.to_back(findable)
        holding.blocks = []
        holding.entered = 0
        holding.node = None
