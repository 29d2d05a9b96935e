"""A run or a study as one HTML page that opens without a network."""
