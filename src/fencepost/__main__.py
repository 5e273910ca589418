"""`python -m fencepost`: the command line of this interpreter's own installation, wherever PATH leads."""

from fencepost.cli.main import main

if __name__ == "__main__":
    main()
