"""A run or a study as one HTML page that opens without a network.

`write_page` reads a directory and writes the page.  `reading` and `studies.reading` read what others have written.
`run` and `studies` have the sections, whose charts `drawing` gives to Plotly.  `document` puts everything into one
file, with the plain CSS and JavaScript of `assets`.
"""

from pathlib import Path

from ksim.foundation.errors import ConfigError


def write_page(directory: Path, path: Path) -> Path:
    """Write the page of the run or study in *directory* to *path*; raises KsimError where there is neither."""
    text = page_of(directory)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), f"cannot be written: {error.strerror or error}") from error
    return path


def page_of(directory: Path) -> str:
    """The page of the run or study in *directory*."""
    if not directory.is_dir():
        raise ConfigError(str(directory), "is no directory; name one that `ksim run -o`, `sweep`, `tune` or"
                                          " `capacity` has written")
    if (directory / "study.json").is_file():
        from ksim.views.page.studies import study_page
        from ksim.views.page.studies.reading import Study

        return study_page(Study.read(directory)).html()
    from ksim.views.page.reading import SavedRun
    from ksim.views.page.run import run_page

    return run_page(SavedRun.read(directory)).html()
