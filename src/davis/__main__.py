"""``python -m davis`` is the command ``davis``."""

from davis.cli import main

if __name__ == "__main__":
    main()
