"""What AIConfigurator writes: its folders, and the workers that it chose."""
