"""Old flags of a command that still work, with a line that says the new one, for one release."""

from __future__ import annotations

from collections.abc import Callable, Sequence

FLAGS = {"import": {"--drop": "--exclude"}}


def new_flags(arguments: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """The words of a command line with old flags replaced; `say` is told of each."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    replaced = []
    for word in arguments:
        flag, equals, value = word.partition("=")
        new = FLAGS.get(command, {}).get(flag)
        if new is not None:
            say(f"{flag} is now {new}; the old name goes in the next release")
        replaced.append(word if new is None else f"{new}{equals}{value}")
    return replaced
