"""``python -m gqc`` is the command ``gqc``."""

from gqc.cli import main

if __name__ == "__main__":
    main()
