"""Programs that start engines; each knows its flags.

A program is a class without arguments:

    def recognises(self, command: ShellCommand) -> bool: ...         # is this mine, by its first words or its image?
    def launch(self, command: ShellCommand, wanted: ImportOptions) -> EngineLaunch: ...
"""
