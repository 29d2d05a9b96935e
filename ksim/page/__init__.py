"""A run or a study as one HTML page that opens without a network.

`write.write_page` reads a directory and writes the page.  `reading` and `studies.reading` read what others have
written.  `run` and `studies` have a module for each section.  `charts` and `markup` say what a figure and an element
are.  `document` puts everything into one file, with the plain CSS and JavaScript of `assets`.
"""
