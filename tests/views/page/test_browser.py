"""Pages in a real browser: nothing goes wrong, nothing leaves them, and what they show is so."""

import json
from decimal import ROUND_HALF_EVEN
from itertools import pairwise

import pytest
from pyarrow import parquet

from ksim.views.page.studies.reading import Study
from ksim.views.wording import DOWN, UP, number, percent
from tests.views.page.browser import DESKTOP, KINDS, PHONE, eventually, opened
from tests.views.page.made_up import EVIL

#: All that a page shows of the numbers of a file: the key, the pool or point, the exact value and the text.
_TOLD = """[...document.querySelectorAll('data')].map((told) =>
    [{...told.dataset}, told.getAttribute('value'), told.textContent])"""
_WIDER = """[...document.querySelectorAll('body *')].filter((one) => one.getBoundingClientRect().right > innerWidth + 1
    && !one.closest('.scroll, nav, pre, svg')).map((one) => one.outerHTML.slice(0, 80))"""
#: Words of tables and lists that are in several lines; a line may break after the marks in names.
_BROKEN = """[...document.querySelectorAll('th, td, dt')].flatMap((cell) => {
    const found = [], texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/[A-Za-z0-9]+/g)) {
        const range = document.createRange();
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) found.push(word[0]);
    }
    return found;
})"""
#: Texts of figures that are not all within them, and pairs of which one covers the other.
_CROWDED = """[...document.querySelectorAll('.plot')].flatMap((plot) => {
    const outer = plot.getBoundingClientRect(), found = [], inside = (one) => one.left > outer.left - 2
        && one.right < outer.right + 2 && one.top > outer.top - 2 && one.bottom < outer.bottom + 2;
    const texts = [...plot.querySelectorAll('[class*=title] text, text[class*=title], .textpoint text, .legendtext')]
        .map((text) => [text.textContent, text.getBoundingClientRect()]).filter(([, box]) => box.width);
    texts.forEach(([name, one], at) => {
        if (!inside(one)) found.push([plot.id, name]);
        for (const [other, two] of texts.slice(at + 1)) if (one.left < two.right - 2 && two.left < one.right - 2
            && one.top < two.bottom - 2 && two.top < one.bottom - 2) found.push([plot.id, name, other]);
    });
    return found;
})"""


def shows(value, text, key=""):
    """Whether *text* is how pages show *value* of *key*: as it is, rounded, in per cent or in thousands.

    Ends of intervals are rounded outwards.
    """
    if value is None or isinstance(value, str | bool):
        return text in {"-", json.dumps(value), value}
    rounding = DOWN if "_low" in key else UP if "_high" in key else ROUND_HALF_EVEN
    forms = {*(number(value / scale, rounding) for scale in (1, 1e3, 1e9)), number(value), percent(value),
             percent(value, 0)}
    return text in forms or (text not in forms and json.dumps(value) == text)


#: Directories of single runs.
RUNS = ("run", "streamed", "fleet", "without targets", "unserved")
#: Pages of streamed, unserved and untargeted runs have fewer parts of a run's, and a tuning's has those of a sweep's.
LOOKS = [(kind, DESKTOP) for kind in KINDS] + [
    (kind, PHONE) for kind in ("run", "fleet", "sweep", "capacity", "routers")]


@pytest.mark.parametrize("kind, size", LOOKS)
def test_pages_are_drawn_without_errors_or_a_network_and_tell_the_numbers(browser, pages, directories, kind, size):
    with opened(browser, pages[kind], size, dark=size == PHONE) as view:
        assert not view.said and all(asked.startswith("file:") for asked in view.asked) and len(view.asked) == 1
        undrawn = view.page.evaluate("[...document.querySelectorAll('.plot')].filter((plot) =>"
                                     " !plot.querySelector('.main-svg')).map((plot) => plot.id)")
        assert not undrawn
        assert view.page.evaluate("document.documentElement.scrollWidth") <= size[0], view.page.evaluate(_WIDER)
        assert not view.page.evaluate(_BROKEN)
        assert not view.page.evaluate(_CROWDED)
        if kind in RUNS and size == DESKTOP:
            check_numbers(view.page.evaluate(_TOLD), directories[kind])


def check_numbers(told, directory):
    """All numbers that a page of the run in *directory* has *told* are those of its summary, and all of these are."""
    summary = json.loads((directory / "summary.json").read_text())
    shown = set()
    for data, value, text in told:
        of = summary["pools"][data["pool"]] if "pool" in data else summary
        assert json.loads(value) == of.get(data["key"]), data
        assert shows(json.loads(value), text, data["key"]), (data, value, text)
        shown.add((data.get("pool"), data["key"]))
    # The table of all numbers has every one of them, the cards those that matter.
    assert {(None, key) for key in summary if key != "pools"} <= shown
    assert {(pool, key) for pool, part in summary.get("pools", {}).items() for key in part} <= shown


@pytest.mark.parametrize("kind", ["sweep", "tune"])
def test_numbers_of_points_are_those_of_the_runs(browser, pages, directories, kind):
    points = {str(point.number): point for point in Study.read(directories[kind]).points}
    with opened(browser, pages[kind]) as view:
        told = view.page.evaluate(_TOLD)
    assert len(told) > 100
    for data, value, text in told:
        assert json.loads(value) == points[data["point"]].means[data["key"]] and shows(json.loads(value), text)


def test_numbers_of_a_capacity_are_those_of_its_file(browser, pages, directories):
    content = json.loads((directories["capacity"] / "capacity.json").read_text())
    with opened(browser, pages["capacity"]) as view:
        told, lead = view.page.evaluate(_TOLD), view.page.locator(".lead").inner_text()
    assert lead == content["sentence"] and len(told) > 10
    for data, value, text in told:
        found = content
        for step in json.loads(data["path"]):
            found = found[step]
        assert json.loads(value) == found and shows(found, text)


def test_names_with_markup_do_not_run(browser, pages):
    for kind in ("run", "fleet", "sweep", "capacity"):
        with opened(browser, pages[kind]) as view:
            assert not view.said and not view.page.locator("img").count()
            assert EVIL in view.page.locator("body").inner_text()


def chosen(view):
    return int(view.page.locator("#chosen h3").inner_text().split()[-1])


def test_a_request_is_chosen_by_mouse_and_by_keys(browser, pages, directories):
    requests = parquet.read_table(directories["run"] / "requests.parquet").to_pylist()
    completed = [row for row in requests if row["ttft_s"] is not None]
    slowest = max(completed, key=lambda row: row["ttft_s"])["id"]
    with opened(browser, pages["run"]) as view:
        page = view.page
        assert chosen(view) == slowest
        page.locator("#request-id").focus()
        page.keyboard.press("ArrowDown")
        second = chosen(view)
        assert sorted(completed, key=lambda row: -row["ttft_s"])[1]["id"] == second != slowest
        page.keyboard.press("ArrowUp")
        assert chosen(view) == slowest
        page.locator("#request-id").fill("7")
        assert chosen(view) == 7
        page.locator("#request-id").fill("99999")
        assert chosen(view) == 7 and "no request 99999" in page.locator("#request-help").inner_text()
        page.locator("#request-next").click()
        assert chosen(view) != 7
        page.locator("#request-order").select_option("arrival")
        assert chosen(view) == requests[0]["id"]
        button = page.locator("#missed button.choose").nth(1)
        wanted = int(button.get_attribute("data-request"))
        button.focus()
        page.keyboard.press("Enter")
        assert chosen(view) == wanted and not view.said
        dot = page.locator("#figure-places .points path").nth(3).bounding_box()
        page.mouse.click(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
        assert chosen(view) != wanted


def test_phases_of_a_chosen_request_add_up(browser, pages, directories):
    table = parquet.read_table(directories["run"] / "attribution.parquet")
    with opened(browser, pages["run"]) as view:
        row = table.column("id").to_pylist().index(chosen(view))
        sums = [1e3 * sum(table[name][row].as_py() for name in table.column_names if name.startswith(part))
                for part in ("to_first.", "after.")]
        drawn = view.page.evaluate("['', '2'].map((own) => document.getElementById('figure-request').data"
                                   ".filter((bar) => bar.xaxis === `x${own}`).reduce((sum, bar) => sum + bar.x[0], 0))")
        assert drawn == pytest.approx(sums, abs=0.02)


def test_the_theme_is_that_of_the_reader_and_switches(browser, pages):
    ground = "getComputedStyle(document.body).backgroundColor"
    paper = "document.getElementById('figure-timeline').layout.paper_bgcolor"
    with opened(browser, pages["run"]) as light, opened(browser, pages["run"], dark=True) as dark:
        first, second = light.page.evaluate(ground), dark.page.evaluate(ground)
        assert first != second and light.page.evaluate(paper) == "#ffffff" != dark.page.evaluate(paper)
        for view in (light, dark):
            view.page.locator("#theme").focus()
            view.page.keyboard.press("Enter")
        eventually(dark.page, f"{paper} === '#ffffff'")
        assert (light.page.evaluate(ground), dark.page.evaluate(ground)) == (second, first)


def test_keys_reach_everything(browser, pages):
    with opened(browser, pages["run"]) as view:
        view.page.keyboard.press("Tab")
        assert view.page.evaluate("document.activeElement.textContent") == "Skip to the answer"
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert view.page.evaluate(outline) == "solid"
        view.page.keyboard.press("Enter")
        assert view.page.evaluate("document.activeElement.id") == "answer"
        unnamed = view.page.evaluate("[...document.querySelectorAll('button, input, select')].filter((one) =>"
                                     " !one.textContent.trim() && !one.labels?.length && !one.ariaLabel).length")
        levels = view.page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((one) => Number(one.tagName[1]))")
        assert not unnamed and levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))


def test_tables_are_sorted_by_keys(browser, pages):
    with opened(browser, pages["sweep"]) as view:
        def column():
            return [float(text) for text in view.page.evaluate(
                "[...document.querySelectorAll('#points-table tbody tr')].map((row) => row.cells[1].textContent)")]

        view.page.locator("#points-table .sorter").nth(1).focus()
        view.page.keyboard.press("Enter")
        assert column() == sorted(column(), reverse=True)
        view.page.keyboard.press("Space")
        assert column() == sorted(column())
        assert view.page.locator("#points-table th[aria-sort=ascending]").count() == 1


def test_a_point_leads_to_its_scenario(browser, pages, directories, tmp_path):
    study = Study.read(directories["sweep"])
    with opened(browser, pages["sweep"]) as view:
        page = view.page
        page.locator("#points-table button.choose").nth(6).click()
        scenario = study.points[6].scenario
        assert page.locator("#point-scenario").inner_text() == scenario
        with page.expect_download() as saving:
            page.locator("[data-saves=point-scenario]").click()
        assert saving.value.suggested_filename == "point-7.toml"
        saving.value.save_as(tmp_path / "it.toml")
        assert (tmp_path / "it.toml").read_text() == scenario
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator("[data-copies=point-scenario]").click()
        eventually(page, "document.getElementById('point-scenario-said').textContent === 'copied'")
        page.locator("#figure-front").scroll_into_view_if_needed()
        dot = page.locator("#figure-front .scatterlayer .trace").nth(1).locator("path.point").last.bounding_box()
        page.mouse.click(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
        assert page.locator("#point-told h3").inner_text() != "Point 7" and not view.said


def test_the_front_is_what_no_other_point_beats(browser, pages, directories):
    study = Study.read(directories["sweep"])
    x, y = "request_goodput", "p99_ttft_ms"
    costs = {point.number: (-point.means[x], point.means[y]) for point in study.counting}
    front = {number for number, cost in costs.items() if not any(
        other != cost and other[0] <= cost[0] and other[1] <= cost[1] for other in costs.values())}
    with opened(browser, pages["sweep"]) as view:
        view.page.locator("#front-x").select_option(x)
        view.page.locator("#front-y").select_option(y)
        rows = view.page.locator("#front-table tbody th").all_inner_texts()
        assert {int(text) for text in rows} == front
        assert "more is better" in view.page.locator("#figure-front").text_content()


def test_lines_are_brushed_by_drag_and_by_fields(browser, pages):
    with opened(browser, pages["tune"]) as view:
        page, said = view.page, view.page.locator("#parallel-said")
        assert said.inner_text() == "All 40 points are kept."
        page.locator(".parallel").scroll_into_view_if_needed()
        box = page.locator(".parallel .handle").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 4)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60, steps=4)
        page.mouse.up()
        assert "13 of 40 points are kept" in said.inner_text()
        page.locator("#parallel-reset").click()
        field = page.get_by_label("serve.max_num_seqs to")
        field.fill("30")
        field.press("Enter")
        assert "of 40 points are kept" in said.inner_text() and not view.said
        page.get_by_label("power.cap from").fill("600")
        page.keyboard.press("Enter")
        assert "cap, W" in page.locator(".parallel").text_content()


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_it_prints_light_without_controls_on_the_width_of_paper(browser, pages, kind):
    with opened(browser, pages[kind], dark=True) as view:
        page = view.page
        view.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        eventually(page, "[...document.querySelectorAll('.plot')].every((plot) => plot._fullLayout.width <= 700)")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not [name for name in ("nav", "#theme", ".controls") if page.locator(name).first.is_visible()]
        papers = page.evaluate("[...document.querySelectorAll('.plot')].map((plot) => plot.layout.paper_bgcolor)")
        assert {*papers} == {"#ffffff"}
        assert page.pdf(format="A4").startswith(b"%PDF") and not view.said
