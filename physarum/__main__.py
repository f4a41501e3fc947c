"""`python -m physarum`."""

from physarum.cli import main

main()
