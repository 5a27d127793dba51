"""``python -m planner_core.zoo [model…]``: print the zoo's table; ``--page``: its whole README."""

from __future__ import annotations

import sys

from planner_core.errors import GraphError
from planner_core.zoo.table import markdown, page, table


def main(argv: list[str]) -> int:
    try:
        print(page() if argv == ["--page"] else markdown(table(argv)), end="" if argv == ["--page"] else "\n")
    except GraphError as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
