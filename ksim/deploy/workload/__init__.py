"""The workload of an imported scenario: that of a benchmark client's line, or one that is made up and says so."""
