"""`python -m mithril` is the command `mithril`."""

from mithril.cli.app import main

if __name__ == "__main__":
    main()
