"""Lines of a shell, read without running them: words with their places, variables, here-documents, commands.

What a shell would have to run to know is refused by name: the output of commands, and commands under a condition.
"""
