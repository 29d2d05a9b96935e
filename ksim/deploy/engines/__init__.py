"""What the flags of engines amount to: for every engine (launching, releases, environment), and for each by itself."""
