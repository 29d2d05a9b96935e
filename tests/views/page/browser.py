"""A headless Chromium for tests, and what a page did in it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")
#: The directories whose pages are tested; conftest.py makes them.
KINDS = ("run", "streamed", "fleet", "without targets", "unserved", "sweep", "tune", "capacity", "routers")
DESKTOP, PHONE = (1280, 900), (390, 844)


def chromium() -> str | None:
    """The Chromium that is installed, or None."""
    known = ("/usr/bin/chromium", *map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    return next((path for path in known if path and os.access(path, os.X_OK)), None)


def absent() -> str:
    """Why no browser can be started; "" where one can."""
    if find_spec("playwright") is None:
        return "playwright is not installed: pip install -e '.[browser]'"
    return "" if chromium() else "no Chromium is installed"


@contextmanager
def started() -> "Iterator[Browser]":
    """One browser for many pages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@define(slots=False)
class Opened:
    """A page that is open: what it logged and what went wrong, and what it asked the network for."""

    page: "Page"
    said: list[str] = field(factory=list)
    asked: list[str] = field(factory=list)

    def close(self, dialog: "Dialog") -> None:
        """Note a dialog, which no page should have."""
        self.said.append(f"dialog: {dialog.message}")
        dialog.dismiss()


def eventually(page: "Page", expression: str) -> None:
    """Wait until *expression* is true; the page's own policy forbids the usual way, which evaluates texts in it."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")


@contextmanager
def opened(browser: "Browser", path: Path, size: tuple[int, int] = DESKTOP, dark: bool = False) -> Iterator[Opened]:
    """The page at *path*, once all of its figures are drawn; no request may leave it."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]},
                                  color_scheme="dark" if dark else "light", reduced_motion="reduce",
                                  accept_downloads=True, offline=True)
    opened = Opened(context.new_page())
    opened.page.on("console", lambda message: opened.said.append(f"{message.type}: {message.text}"))
    opened.page.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.page.on("dialog", opened.close)
    opened.page.on("request", lambda request: opened.asked.append(request.url))
    try:
        opened.page.goto(path.as_uri())
        opened.page.wait_for_selector("html[data-ready]", state="attached")
        yield opened
    finally:
        context.close()
