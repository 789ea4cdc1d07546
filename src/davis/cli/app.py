"""The command line: verbs that parse and print; the library does the work."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from davis import __version__
from davis.cli import benchmarks, calibrating, detectors, explaining, scoring, showing, training, tuning, watching


class _Verbs(TyperGroup):
    """click takes the end of a file for that of the terminal, and so for an interrupt; no verb reads from there."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EOFError as error:
            said = str(error) or "nothing is left to read"
            raise ValueError(f"a file ends too early: {said} (--debug shows where)") from error


app = typer.Typer(
    cls=_Verbs,
    add_completion=False,
    help="Know when an image classifier should not be trusted.",
    rich_markup_mode=None,
)

# typer brings its own click or uses the installed one; either way this is the base of what it raises at bad usage.
_ClickError: Any = typer.BadParameter.__mro__[2]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command: status 0, 1 if images were skipped, 2 with an error on stderr if it failed, 3 after an alarm,
    130 if interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    debug = "--debug" in given  # accepted before and after the verb
    given = [argument for argument in given if argument != "--debug"]
    _fill_in_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be text
    try:
        with _quiet_zoos(debug):
            status = app(given, prog_name="davis", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"error: {_in_words(error)}", file=sys.stderr)
        status = 2
    sys.exit(status if isinstance(status, int) else 0)


def _fill_in_streams() -> None:
    """The null device for each stream that the shell closed (``2>&-``), where Python has None.

    In this order they take the numbers that are free: a file that is opened later would get one of them, and with it
    what libraries print there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (open until the end)


def _in_words(error: Exception) -> str:
    """On one line; only an error that lists several things has a line for each."""
    if lines := getattr(error, "lines", ()):
        return "\n  ".join(_on_one_line(line) for line in lines)
    if isinstance(error, _ClickError):
        text = f"{error.format_message().replace('Value error, ', '')} (davis VERB --help lists what there is)"
    elif isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.strerror}: {error.filename}"
    elif isinstance(error, ValueError | TypeError | OSError | ImportError) and str(error):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error} (--debug shows where)"
    return _on_one_line(text)


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


@contextlib.contextmanager
def _quiet_zoos(debug: bool) -> Iterator[None]:
    """Warnings as one line each; what zoos log about their own retries and deprecations not at all."""
    if debug:
        yield
        return

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)

    for name in ("huggingface_hub", "transformers", "timm"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        warnings.showwarning = show
        yield


def _version(asked: bool) -> None:
    if asked:
        print(f"davis {__version__}")
        raise typer.Exit


@app.callback()
def _davis(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from")] = False,
) -> None:
    pass


app.command("list")(detectors.list_)
app.command()(detectors.inspect)
app.command()(detectors.fit)
app.command()(scoring.score)
app.command()(calibrating.calibrate)
app.command()(watching.watch)
app.command()(tuning.tune)
app.command()(explaining.explain)
app.command()(showing.demo)
app.command()(benchmarks.bench)
app.command()(benchmarks.report)
app.command()(training.train)
app.add_typer(benchmarks.data_app, name="data")
