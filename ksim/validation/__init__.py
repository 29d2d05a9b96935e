"""Does ksim do as the real thing did?  Recorded behaviour, played again and compared."""
