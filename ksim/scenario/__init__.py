"""What a scenario means: its file read, its names looked up, its defaults resolved, and what can be said without a
run.
"""
