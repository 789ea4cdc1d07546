"""The command line."""

from davis.cli.app import main as main
