"""``python -m rlx_viz``: the command line."""

from rlx_viz.cli import main

if __name__ == "__main__":
    main()
