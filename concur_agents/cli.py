"""Entry point of `concur`. The commands are in `commands`; this only says what is missing, or went wrong."""

from __future__ import annotations

import sys

from concur_agents.errors import ConcurError, InvalidValueError


def main() -> None:
    """Run the command line and exit. Status 1: it failed; 2: wrong arguments; 130: interrupted."""
    try:
        from concur_agents.commands import app
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("concur_agents"):
            raise
        sys.exit(
            f"error: `concur` needs the Python package {error.name!r}, which is not installed: "
            "pip install 'concur-agents[bench]'"
        )
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except ConcurError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InvalidValueError) else 1)


if __name__ == "__main__":
    main()
