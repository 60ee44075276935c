"""Log lines on stderr: concise text or JSON, through stdlib logging.

Rules: a thread that logs never waits for stderr (one thread writes; a full queue drops lines and counts them). Prompts
and answers go only into the private fields, which are shown as a length unless the configuration asks for the text.
Context is passed as fields: `log.info("accepted", extra={"request": rid, "conn": 3, "prompt": text})`.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time
from typing import Any, Protocol, TextIO

from uma_core import threads


def fill_standard_descriptors() -> None:
    """Open closed standard descriptors on /dev/null. Otherwise a socket could get descriptor 2, and text that libraries
    write to stderr would go to a client.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stdout is None:  # printing must fail, so that a script learns that the output is lost
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")  # noqa: SIM115 - for the process's life
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the process's life


class LogOptions(Protocol):
    """The options of a configuration's `log` section."""

    @property
    def level(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def prompts(self) -> bool: ...


ROOT = "uma_core"  # the parent of all our loggers, which come from `logging.getLogger(__name__)`
PRIVATE_FIELDS = frozenset({"prompt", "text", "messages"})
CAPACITY = 4096  # lines in the queue: seconds of debug output
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}


class Formatter(logging.Formatter):
    """Writes one line per record, whatever the record contains."""

    def __init__(self, is_json: bool, has_prompts: bool) -> None:
        super().__init__()
        self._is_json = is_json
        self._has_prompts = has_prompts

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: self._shown(name, value) for name, value in vars(record).items() if _is_field(name)}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return self._json(record, fields) if self._is_json else self._text(record, fields)

    def _shown(self, name: str, value: Any) -> Any:
        if name not in PRIVATE_FIELDS or self._has_prompts:
            return value
        return f"<{len(value)} hidden>" if hasattr(value, "__len__") else "<hidden>"

    def _json(self, record: logging.LogRecord, fields: dict[str, Any]) -> str:
        head = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "part": _part(record),
            "message": record.getMessage(),
        }
        return json.dumps({**head, **fields}, default=str)

    def _text(self, record: logging.LogRecord, fields: dict[str, Any]) -> str:
        traceback = fields.pop("traceback", "")
        tail = "".join(f" {name}={_word(value)}" for name, value in fields.items())
        line = f"{_stamp(record)} {record.levelname:<7} {_part(record)}: {_one_line(record.getMessage())}{tail}"
        return f"{line}\n{traceback}" if traceback else line


class Output(logging.Handler):
    """Takes lines from any thread and writes them from its own. `close` writes what is left."""

    def __init__(
        self, options: LogOptions, stream: TextIO | None = None, capacity: int = CAPACITY, root: str = ROOT
    ) -> None:
        """`root`: the package whose modules log here."""
        super().__init__()
        self.n_dropped = 0
        self._root = root
        self._stream = stream or sys.stderr
        self._queue: queue.Queue[str | None] = queue.Queue(capacity)
        self._writer = threading.Thread(target=self._write_all, name="log", daemon=True)
        self.apply(options)
        logger = logging.getLogger(root)
        logger.propagate = False
        logger.addHandler(self)
        threads.start(self._writer)

    def apply(self, options: LogOptions) -> None:
        """Apply level and format while running."""
        self.setFormatter(Formatter(options.format == "json", options.prompts))
        logging.getLogger(self._root).setLevel(options.level.upper())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # a log call of ours that cannot be formatted must not raise in its caller
            line = f"{_stamp(record)} ERROR   log: {record.pathname}:{record.lineno} cannot be formatted: {error!r}"
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self.n_dropped += 1

    def close(self) -> None:
        """Write what is queued and end. Blocks for at most 2 s. Idempotent."""
        logger = logging.getLogger(self._root)
        logger.removeHandler(self)
        logger.propagate = True
        if self._writer.is_alive():
            try:
                self._queue.put(None, timeout=1.0)
                self._writer.join(1.0)
            except queue.Full:  # stderr has been blocked for a second
                self.n_dropped += self._queue.qsize()
        super().close()

    def _write_all(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # stderr is closed, its disk is full, or it cannot encode the line
                self.n_dropped += 1


def installed() -> Output | None:
    """Return the output in use, for callers that change its options or count its losses."""
    return next((handler for handler in logging.getLogger(ROOT).handlers if isinstance(handler, Output)), None)


def _is_field(name: str) -> bool:
    """Whether our own code gave a record this attribute. Libraries' record factories (such as Ray's) add some that
    start with `_`.
    """
    return name not in _STANDARD and not name.startswith("_")


def _stamp(record: logging.LogRecord) -> str:
    moment = time.localtime(record.created)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{int(record.msecs):03d}{time.strftime('%z', moment)}"


def _part(record: logging.LogRecord) -> str:
    return record.name.removeprefix(f"{ROOT}.")


def _one_line(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _word(value: Any) -> str:
    text = str(value)
    return text if text and text.isprintable() and " " not in text and '"' not in text else json.dumps(text)
