"""Forms in which `ksim export` writes a scenario; the file of a writer is its name.

A writer is a class without arguments:

    def write(self, outgoing: Outgoing) -> dict[str, str]: ...      # texts by the ending of their file's name

The first text is the one that is printed, or written to the file that the user names; others, with endings such as
`-router`, are written beside it.  What a form cannot say is in comments at the top of the first text, and nowhere left
out in silence.
"""
