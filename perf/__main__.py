"""`python -m perf`: the command line."""

from perf.cli import main

if __name__ == "__main__":
    main()
