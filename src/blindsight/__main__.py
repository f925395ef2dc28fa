"""`python -m blindsight` is the command line."""

from __future__ import annotations

from blindsight.cli.main import run

__all__: list[str] = []

if __name__ == "__main__":
    run()
