"""The client must start fast: it imports neither the bindings, nor the server, nor anything else that is slow to
load.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "uma_core._llama",
    "uma_core.server",
    "uma_core.engine",
    "uma_core.executor",
    "numpy",
    "cffi",
    "jinja2",
    "yaml",
    "gguf",
    "rich",
)


MODULES = ["uma_ctl.main", "uma_ctl.cli", "uma_ctl.commands.status", "uma_ctl.commands.chat", "uma_ctl.commands.top"]


@pytest.mark.parametrize("module", MODULES)
def test_commands_import_nothing_heavy(module, environment):
    code = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "")


def test_the_group_imports_a_command_only_when_it_is_named(environment):
    code = "import sys, uma_ctl.main; print(*(name for name in sys.modules if name.startswith('uma_ctl.commands.')))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "")
