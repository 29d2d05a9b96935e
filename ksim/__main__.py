"""`python -m ksim` is `ksim`."""

from ksim.cli import main

if __name__ == "__main__":
    main()
