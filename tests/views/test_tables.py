"""Tables: every value is whole or its column is counted, whatever the width."""

from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ksim.views.tables import (
    REMEDY,
    Column,
    Markup,
    Table,
    TableRow,
    as_text,
    beside,
    hidden_line,
    html,
    laid_out,
    markdown,
    notebook,
)
from tests.properties import examples


@st.composite
def tables(draw):
    """Any table, of whose words no two are equal."""
    numbers = count()

    def words(most, longest):
        return " ".join(f"{next(numbers)}~".ljust(draw(st.integers(1, longest)), "~")
                        for _ in range(draw(st.integers(0, most))))

    columns = tuple(Column(words(3, 12), draw(st.booleans()), draw(st.integers(0, 2)), draw(st.integers(0, 9)))
                    for _ in range(draw(st.integers(1, 9))))
    rows = [TableRow(tuple(words(1, 12) if column.number else words(5, 30) for column in columns),
                     ends=draw(st.booleans())) for _ in range(draw(st.integers(0, 4)))]
    return Table(columns, rows, words(4, 30))


@examples(120)
@given(tables(), st.integers(40, 200))
def test_every_value_is_whole_or_its_column_is_counted(table, width):
    text = as_text(table, width)
    layout, shown = laid_out(table, width), text.split()
    assert max(map(len, text.splitlines())) <= width
    assert {*table.title.split()} <= {*shown}
    for place, column in enumerate(table.columns):
        content = [word for row in table.rows for word in str(row.cells[place]).split()]
        if layout.stacked or place in layout.widths:
            assert {*content} <= {word.removesuffix(":") for word in shown}
        else:
            assert column.priority and not {*content} & {*shown}
    hidden = len(table.columns) - len(layout.widths)
    assert layout.stacked or len(layout.hidden) == hidden
    assert (f"{hidden} column{'s' * (hidden > 1)} hidden" in text) == (hidden > 0 and not layout.stacked)


@examples(60)
@given(tables())
@example(Table.of("a", "b", title="longer than both columns"))
def test_where_nothing_limits_a_line_all_columns_stand_side_by_side(table):
    layout, room = laid_out(table, table.width), max(table.width, len(table.title))
    assert not layout.hidden and not layout.stacked
    assert len(as_text(table, room).splitlines()) == len(as_text(table, 10_000).splitlines())


def lines(table, width=80):
    return as_text(table, width).strip().splitlines()


def wide():
    return Table.of("kernel", "shape", ">us", "source", rows=[("gemm", "1x2 of 3x4", "12.5", "measured")],
                    hide=("source", "shape"))


def test_columns_leave_in_their_order_and_names_and_times_stay():
    assert lines(wide(), 40)[0].split() == ["kernel", "shape", "us", "source"]
    assert lines(wide(), 26) == ["kernel  shape         us", "────────────────────────",
                                "gemm    1x2 of 3x4  12.5", "1 column hidden (source)"]
    assert lines(wide(), 20) == ["kernel    us", "────────────", "gemm    12.5",
                                                    "2 columns hidden"]


def test_what_must_stay_stands_one_below_the_other_where_it_has_no_room():
    table = Table.of("name", ">tokens", "", rows=[("a", "1,024", ""), ("b", "2", "yes")])
    assert lines(table, 12) == ["a", "  tokens:", "  1,024", "b", "  tokens: 2", "  yes"]


def test_a_name_that_is_longer_than_a_line_goes_on_in_the_next_one():
    path = "/".join(["folder"] * 20)
    assert as_text(Table.of("path", rows=[(path,)]), 50).replace("\n", "") == path


def test_the_line_about_hidden_columns_says_which_ones_and_how_to_see_them():
    columns = [Column("launch"), Column("of the roof")]
    token = REMEDY.set("--wide, --json")
    try:
        assert hidden_line(columns, 80) == "2 columns hidden (launch, of the roof): --wide, --json"
        assert hidden_line(columns, 40) == "2 columns hidden: --wide, --json"
        assert hidden_line(columns[:1], 20) == "1 column hidden: --wide, --json"
    finally:
        REMEDY.reset(token)


def test_texts_stand_left_numbers_right_and_totals_below_a_gap():
    table = Table.of("name", ">us", rows=[("a", "10.5"), ("longer", "2")])
    table.add_section()
    table.add_row("total", "12.5")
    assert lines(table) == [
        "name      us",
        "────────────",
        "a       10.5",
        "longer     2",
        "",
        "total   12.5",
    ]


def test_nothing_is_taken_for_markup():
    assert "[bold]a" in as_text(Table.of("name", rows=[("[bold]a",)]))


def test_a_row_has_a_cell_for_each_column():
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        Table.of("a", "b").add_row("1")


def test_tables_stand_side_by_side_where_there_is_room():
    both = beside(*(Table.of(name, rows=[("1234567890",)]) for name in ("one", "other")))
    assert "one         other" in as_text(both, 30)
    assert {"one", "other"} < {*lines(both, 20)}


def test_all_writers_have_all_cells_and_escape_what_is_markup_to_them():
    table = Table.of("name", ">tokens", "~why", rows=[("a<b", "1,024", "it_is")])
    assert as_text(table).split()[-3:] == ["a<b", "1,024", "it_is"]
    assert markdown(table) == ["| name | tokens | why   |", "| ---- | -----: | ----- |", "| a<b  |  1,024 | it_is |"]
    assert "<td>a&lt;b</td><td style=\"text-align: right\">1,024</td><td>it_is</td>" in notebook("title", table, "")
    page = html(table)
    assert '<th scope="row">a&lt;b</th><td class="number">1,024</td><td class="long">it_<wbr>is</td>' in page


def test_a_page_shows_markup_and_sorts_by_values():
    page = html(Table.of("name", ">n", rows=[(Markup("<i>x</i>"), ("2 of 3", 2.0))], title="A caption"), sortable=True)
    assert '<th scope="row"><i>x</i></th><td class="number" data-value="2.0">2 of 3</td>' in page
    assert page.count('class="sorter"') == 2 and "<caption><span>A caption</span></caption>" in page
