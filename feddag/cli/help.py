"""Typer with plain help: `-h` beside `--help`, and text as a person expects it."""

import inspect
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from feddag.errors import FeddagError, nearest


class Command(TyperCommand):
    """A command whose help is plain text."""

    def get_help(self, ctx: Any) -> str:
        """The help as it is printed."""
        _restore_arguments(self)
        return _unescaped(super().get_help(ctx))

    def get_help_option(self, ctx: Any) -> Any:
        """`-h` and `--help`."""
        return _in_our_words(super().get_help_option(ctx))

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Nothing: Typer lists arguments together with options, and a newer click would list them once more."""


class Group(TyperGroup):
    """The same for a group of commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant; a wrong one is refused in the words of every other mistake."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            allowed = f"allowed are {', '.join(self.commands)}{nearest(args[0], self.commands)}"
            raise FeddagError(f"'{args[0]}' is not a command of `{ctx.command_path}`; {allowed}")
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """The help as it is printed."""
        return _unescaped(super().get_help(ctx))

    def get_help_option(self, ctx: Any) -> Any:
        """`-h` and `--help`."""
        return _in_our_words(super().get_help_option(ctx))


def new_app(help: str) -> typer.Typer:
    """A group of commands; without a command it shows its help."""
    return typer.Typer(
        cls=Group,
        help=help,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _unescaped(text: str) -> str:
    """Some versions of Typer escape brackets for rich even where rich does not print them.

    >>> _unescaped("a number  \\\\[default: 3]")
    'a number  [default: 3]'
    """
    return text.replace("\\[", "[")


def _restore_arguments(command: Command) -> None:
    """Give arguments the help that was written for them: Typer 0.20 loses it where click has such a help of its own."""
    if command.callback is None:
        return
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    parameters: list[Any] = command.params  # click's, which declares `help` in some versions only
    for parameter in parameters:
        for note in getattr(hints.get(parameter.name or ""), "__metadata__", ()):
            if isinstance(note, ArgumentInfo):
                parameter.help = note.help


def _in_our_words(option: Any) -> Any:
    if option is not None:
        option.help = "show this help"
    return option
