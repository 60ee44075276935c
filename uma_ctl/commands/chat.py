"""`uma-ctl chat`: a conversation line by line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from uma_ctl import generation, output, render
from uma_ctl.constraint import constraint_options
from uma_ctl.declared import given
from uma_ctl.errors import EXIT_INTERRUPTED, EXIT_OK, CtlError, ServerError
from uma_ctl.generation import Answer
from uma_ctl.options import Target, generation_options, with_target

HELP = "/reset clears the conversation, /system TEXT sets the system prompt, /quit exits; Ctrl-C stops an answer."


@click.command()
@with_target
@click.option("--system", metavar="TEXT", help="System prompt.")
@generation_options
@constraint_options
def command(target: Target, system: str | None, **options: Any) -> int:
    """Talk with the model; the conversation is sent again with every turn.

    /reset clears the conversation, /system TEXT sets the system prompt, /help, /quit. Ctrl-C stops a running
    answer, not the chat. Without a terminal, each line of standard input is a turn.
    """
    request = generation.build_request({"priority": "interactive", **given(options)})
    return Chat(target, request, system).run()


class Chat:
    """A conversation: its messages, and the loop that reads turns."""

    def __init__(self, target: Target, request: dict[str, Any], system: str | None) -> None:
        self.target = target
        self.request = request
        self.system = system
        self.messages: list[dict[str, str]] = []
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self.status = EXIT_OK
        self.slash: dict[str, Callable[[str], None]] = {
            "/reset": self.on_reset,
            "/system": self.on_system,
            "/help": self.on_help,
        }

    def run(self) -> int:
        """Read turns until the end of input or /quit. Without a terminal, the last answer sets the exit status."""
        if self.is_terminal:
            import readline  # noqa: F401  gives input() line editing and history, which only a terminal needs

            output.note(HELP)
        while self._step():
            pass
        return EXIT_OK if self.is_terminal else self.status

    def _step(self) -> bool:
        """Read one line and carry it out. False: exit. On a terminal, Ctrl-C does not exit."""
        try:
            line = input("> " if self.is_terminal else "").strip()
            if line == "/quit":
                return False
            if line.startswith("/"):
                word, _, rest = line.partition(" ")
                self.slash.get(word, self.on_help)(rest.strip())
            elif line:
                self.turn(line)
        except EOFError:
            return False
        except KeyboardInterrupt:
            if not self.is_terminal:
                raise
            output.note("")
        return True

    def on_reset(self, rest: str) -> None:
        self.messages.clear()
        output.note("conversation cleared")

    def on_system(self, rest: str) -> None:
        self.system = rest or None
        output.note("system prompt set" if rest else "system prompt removed")

    def on_help(self, rest: str) -> None:
        output.note(HELP)

    def turn(self, text: str) -> None:
        """Send one turn. The text of an interrupted answer stays in the conversation; a refused turn does not.

        Raises: CtlError if the daemon is gone and there is no terminal at which a user could try again.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        try:
            answer = self._ask(asked)
        except CtlError as error:
            self.status = error.exit_status
            if not (self.is_terminal or isinstance(error, ServerError)):
                raise
            output.note(render.error_line(error.to_dict()))
            return
        self.status = answer.exit_status
        if answer.text:  # templates need user and assistant to alternate, so a turn without an answer is dropped
            self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        if answer.exit_status not in (EXIT_OK, EXIT_INTERRUPTED):
            output.note(f"the answer is not complete: {render.summary(answer.usage, answer.timing, answer.reason)}")

    def _ask(self, asked: list[dict[str, str]]) -> Answer:
        """Ask over a new connection each turn: the idle timeout may pass between turns, or the daemon may restart."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return generation.show(self.target, {"messages": head + asked, **self.request})
