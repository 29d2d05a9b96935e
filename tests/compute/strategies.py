"""Equations for properties."""

from hypothesis import strategies as st


@st.composite
def equations(draw, operands: st.SearchStrategy[int] = st.integers(2, 3)) -> str:  # noqa: B008
    """Any that makes sense: each index in some of the inputs, and in the result where it is in one alone."""
    count = draw(operands)
    inputs: list[list[str]] = [[letter] for letter in "xyz"[:count]]  # none is without an index
    out = list("xyz"[:count])
    for index in "abcd"[:draw(st.integers(0, 4))]:
        places = draw(st.sets(st.integers(0, count - 1), min_size=1))
        for place in places:
            inputs[place].append(index)
        if len(places) == 1 or draw(st.booleans()):
            out.append(index)
    tensors = ["".join(draw(st.permutations(tensor))) for tensor in (*inputs, out)]
    return f"{','.join(tensors[:-1])}->{tensors[-1]}"
