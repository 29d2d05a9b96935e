"""The tree of cached prefixes: a path is found as far as each of its blocks is there."""

from ksim.kv.cache.block_cache import BlockNode, BlockTrie


def insert(tree: BlockTrie, names: str, first_block: int) -> BlockNode:
    """Insert a block for each of *names*, each after the one before it."""
    node = tree.root
    for index, name in enumerate(names):
        node = tree.insert(node, name, first_block + index)
    return node


def matched(tree: BlockTrie, names: str) -> list[int]:
    return [node.blocks[0] for node in tree.match(names)]


def test_the_longest_prefix_is_found():
    tree = BlockTrie()
    insert(tree, "abc", 0)
    assert matched(tree, "abcd") == [0, 1, 2]
    assert matched(tree, "abx") == [0, 1]
    assert matched(tree, "bc") == []


def test_equal_blocks_are_not_merged_and_the_first_inserted_is_found():
    tree = BlockTrie()
    insert(tree, "ab", 0)
    insert(tree, "ab", 4)
    assert matched(tree, "ab") == [0, 1]
    tree.evict(0)
    assert matched(tree, "ab") == [4, 1]


def test_a_prefix_ends_where_a_block_is_evicted():
    tree = BlockTrie()
    insert(tree, "abc", 0)
    tree.evict(1)
    assert matched(tree, "abc") == [0]
    assert tree.holds(2)
    tree.insert(tree.match("a")[0], "b", 5)
    assert matched(tree, "abc") == [0, 5, 2]


def test_evicting_the_last_block_leaves_nothing_behind():
    tree = BlockTrie()
    insert(tree, "abc", 0)
    for block in (0, 1, 2):
        tree.evict(block)
    assert not tree.root.children
    assert list(tree) == []


def test_evicting_what_is_not_there_changes_nothing():
    tree = BlockTrie()
    insert(tree, "a", 0)
    tree.evict(1)
    assert matched(tree, "a") == [0]


def test_iterating_gives_the_nodes_that_hold_blocks():
    tree = BlockTrie()
    insert(tree, "ab", 0)
    insert(tree, "ac", 4)
    tree.evict(1)
    assert {node.name: node.blocks for node in tree} == {"a": [0, 4], "c": [5]}
