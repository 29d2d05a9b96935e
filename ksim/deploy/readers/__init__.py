"""Kinds of text that say how engines are started; the file of a reader is its name.

A reader is a class without arguments:

    def recognises(self, pasted: Pasted) -> bool: ...           # is this a text of mine?  Never raises
    def read(self, pasted: Pasted, wanted: ImportOptions) -> Deployed: ...

`read` raises ConfigError with the place (`pasted.at(line)`), the word and the remedy.  It gives a container's command
to `ksim.deploy.commands.launch_of`.  `lines` is asked last, since a manifest may hold lines of a shell.
"""
