"""The tree of cached prefixes: a path is found as far as each of its blocks is there."""

from ksim.kv_cache.radix import Node, PrefixTree


def enter(tree: PrefixTree, names: str, first_block: int) -> Node:
    """Enter a block for each of *names*, each after the one before it."""
    node = tree.root
    for place, name in enumerate(names):
        node = tree.enter(node, name, first_block + place)
    return node


def found(tree: PrefixTree, names: str) -> list[int]:
    return [node.blocks[0] for node in tree.match(names)]


def test_the_longest_prefix_is_found():
    tree = PrefixTree(8)
    enter(tree, "abc", 0)
    assert found(tree, "abcd") == [0, 1, 2]
    assert found(tree, "abx") == [0, 1]
    assert found(tree, "bc") == []


def test_equal_blocks_are_not_merged_and_the_first_entered_is_found():
    tree = PrefixTree(8)
    enter(tree, "ab", 0)
    enter(tree, "ab", 4)
    assert found(tree, "ab") == [0, 1]
    tree.forget(0)
    assert found(tree, "ab") == [4, 1]


def test_a_prefix_ends_where_a_block_is_forgotten():
    tree = PrefixTree(8)
    enter(tree, "abc", 0)
    tree.forget(1)
    assert found(tree, "abc") == [0]
    assert tree.holds(2)
    tree.enter(tree.match("a")[0], "b", 5)
    assert found(tree, "abc") == [0, 5, 2]


def test_forgetting_the_last_block_leaves_nothing_behind():
    tree = PrefixTree(8)
    enter(tree, "abc", 0)
    for block in (0, 1, 2):
        tree.forget(block)
    assert not tree.root.children
    assert list(tree) == []


def test_forgetting_what_is_not_there_changes_nothing():
    tree = PrefixTree(2)
    enter(tree, "a", 0)
    tree.forget(1)
    assert found(tree, "a") == [0]


def test_iterating_gives_the_nodes_that_hold_blocks():
    tree = PrefixTree(8)
    enter(tree, "ab", 0)
    enter(tree, "ac", 4)
    tree.forget(1)
    assert {node.name: node.blocks for node in tree} == {"a": [0, 4], "c": [5]}
