"""Anthropic's tools that a client runs, and sends without a schema because Claude knows them: shell, editor, memory.

Sources: Anthropic's pages about these tools, and the types of its Python package.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def _string(description: str) -> Schema:
    return {"type": "string", "description": description}


def _arguments(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required}


_RANGE = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "For `view` of a file: the first and the last line to show, from 1; -1 is the file's end.",
}
_LINE = {"type": "integer", "description": "For `insert`: the line after which the text goes; 0: before the first."}
_FILE_TEXT = _string("For `create`: the content of the new file.")
_OLD = _string("For `str_replace`: the text to replace. It must occur exactly once in the file.")
_NEW = _string("For `str_replace`: the text that replaces it.")
_INSERTED = _string("For `insert`: the text to insert.")


def _command(*names: str) -> Schema:
    return {"type": "string", "enum": list(names), "description": "What to do."}


_BASH = (
    "Runs commands in a bash shell that stays open between calls.",
    _arguments(
        [],
        command=_string("The command to run. Required unless the shell is restarted."),
        restart={"type": "boolean", "description": "True restarts the shell."},
    ),
)
_EDITOR = "Shows, creates and edits text files."
_PATH = _string("The absolute path of the file or folder.")
_OLDER_EDITOR = (
    _EDITOR,
    _arguments(
        ["command", "path"],
        command=_command("view", "create", "str_replace", "insert", "undo_edit"),
        path=_PATH,
        file_text=_FILE_TEXT,
        old_str=_OLD,
        new_str=_string("For `str_replace`: the text that replaces it. For `insert`: the text to insert."),
        insert_line=_LINE,
        view_range=_RANGE,
    ),
)
_NEWER_EDITOR = (  # cannot undo
    _EDITOR,
    _arguments(
        ["command", "path"],
        command=_command("view", "create", "str_replace", "insert"),
        path=_PATH,
        file_text=_FILE_TEXT,
        old_str=_OLD,
        new_str=_NEW,
        insert_line=_LINE,
        insert_text=_INSERTED,
        view_range=_RANGE,
    ),
)
_MEMORY = (
    "Keeps notes for later conversations in files under /memories. Look there before you begin a task.",
    _arguments(
        ["command"],
        command=_command("view", "create", "str_replace", "insert", "delete", "rename"),
        path=_string("The path of the file or folder, such as /memories/notes.txt. Required except for `rename`."),
        file_text=_FILE_TEXT,
        old_str=_OLD,
        new_str=_NEW,
        insert_line=_LINE,
        insert_text=_INSERTED,
        view_range=_RANGE,
        old_path=_string("For `rename`: the path now."),
        new_path=_string("For `rename`: the new path."),
    ),
)
TOOLS: dict[str, tuple[str, Schema]] = {  # by type: what the model is told, and the arguments
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _OLDER_EDITOR,
    "text_editor_20250124": _OLDER_EDITOR,
    "text_editor_20250429": _NEWER_EDITOR,
    "text_editor_20250728": _NEWER_EDITOR,
    "memory_20250818": _MEMORY,
}
