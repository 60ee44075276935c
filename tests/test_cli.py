"""`uma-core`: what people type, and what they get back."""

import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import types

import pytest
import yaml

from tests.daemon.support import FORKED_HELPER, IMPORTED
from tests.forks import server_of
from uma_core import __version__, cli
from uma_core.config.load import Inputs, load
from uma_core.config.options import OPTIONS, Config
from uma_core.errors import ErrorCode, UmaError


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line; return (exit status, stdout, stderr)."""
    for opt in OPTIONS:
        monkeypatch.delenv(opt.env, raising=False)
    for name in [name for name in os.environ if name.startswith("UMA_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str):
        monkeypatch.setattr(sys, "argv", ["uma-core", *arguments])
        status = cli.main()
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def served(monkeypatch):
    """Stand in for the daemon, and record what it was started with."""
    calls = []
    module = types.ModuleType("uma_core.server.lifecycle.daemon")
    module.run = lambda config, sources: calls.append((config, sources)) or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "uma_core.server.lifecycle.daemon", module)
    return calls


def test_version(run):
    assert run("version") == (0, f"uma-core {__version__}\n", "")
    assert run("--version") == (0, f"uma-core, version {__version__}\n", "")  # in the same form as the other programs


def test_ctrl_c_while_the_daemon_is_imported_is_no_traceback(run, monkeypatch):
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert run("daemon") == (130, "", "")


def test_help_names_every_flag_and_variable(run):
    status, out, _ = run("daemon", "--help")
    assert status == 0
    words = set(out.replace("[", " ").replace("]", " ").split())
    assert {opt.flag for opt in OPTIONS} | {opt.env for opt in OPTIONS} <= words


def test_every_flag_reaches_the_config(run, served):
    texts = {"model": "m.gguf", "engine.n_seq": "3", "scheduler.bmt_budget": "auto", "access.allow_uids": "7,8"}
    flags = {opt.key: opt.flag for opt in OPTIONS}
    arguments = [word for key, text in texts.items() for word in (flags[key], text)]
    assert run("daemon", *arguments, "--echo", "--no-prefix-cache")[0] == 0
    ((config, sources),) = served
    assert (config.engine.model, config.engine.n_seq, config.scheduler.bmt_budget) == ("m.gguf", 3, -1.0)
    assert config.access.allow_uids == (7, 8)
    assert (config.ipc.echo, config.cache.prefix) == (True, False)
    assert sources.origins["cache.prefix"] == "flag --prefix-cache"


def test_the_daemons_status_is_the_exit_status(run, served, monkeypatch):
    monkeypatch.setattr(importlib.import_module("uma_core.server.lifecycle.daemon"), "run", lambda config, sources: 7)
    assert run("daemon")[0] == 7


def test_a_coded_error_is_one_line_and_its_exit_status(run, served, monkeypatch):
    def refuse(config, sources):
        raise UmaError(ErrorCode.SOCKET_IN_USE, "another daemon\nanswers")

    monkeypatch.setattr(importlib.import_module("uma_core.server.lifecycle.daemon"), "run", refuse)
    assert run("daemon") == (1, "", "uma-core: E_CONFIG_002 socket_in_use: another daemon answers\n")


def test_a_wrong_value_never_starts_the_daemon(run, served):
    status, out, err = run("daemon", "--n-ctx", "4k")
    assert (status, out) == (1, "")
    said = "engine.n_ctx must be a whole number, 0 to 16777216, not '4k' (flag --n-ctx)"
    assert err == f"uma-core: E_CONFIG_001 config_invalid: {said}\n"
    assert served == []


@pytest.mark.parametrize(
    "arguments", [("daemon", "--n-ctxx", "4"), ("daemon", "--n-ctx"), ("daemonn",), ("daemon", "extra")]
)
def test_usage_errors_are_coded_too(run, served, arguments):
    status, _, err = run(*arguments)
    assert status == 1
    assert err.startswith("uma-core: E_CONFIG_001 config_invalid: ") and err.count("\n") == 1


def test_whoever_types_another_servers_command_reads_ours(run, served):
    said = "uma-core: E_CONFIG_001 config_invalid: "
    assert run("daemon", "m.gguf") == (
        1,
        "",
        f"{said}'m.gguf' is not a flag; a model is given with a flag: --model PATH\n",
    )
    for word in ("serve", "m.gguf"):
        assert run(word) == (1, "", f"{said}No such command '{word}'. This starts the daemon: uma-core daemon\n")
    assert served == []


@pytest.mark.parametrize(
    ("flag", "meant"), [("--n-seq", "--parallel"), ("--disk-dir", "--cache-dir"), ("--port", "--http")]
)
def test_a_flag_is_found_by_the_name_of_its_option(run, flag, meant):
    said = f"No such option '{flag}'. Did you mean '{meant}'?"
    assert run("daemon", flag, "8") == (1, "", f"uma-core: E_CONFIG_001 config_invalid: {said}\n")


@pytest.mark.parametrize("flag", ["--model", "--config", "--no-mtp"])
def test_a_flag_without_its_command_is_told_where_it_belongs(run, served, flag):
    said = f"{flag} is an option of the command daemon: uma-core daemon {flag} ..."
    assert run(flag, "x.gguf") == (1, "", f"uma-core: E_CONFIG_001 config_invalid: {said}\n")
    assert served == []


def test_check_config(run, served, monkeypatch, tmp_path):
    path = tmp_path / "uma.yaml"
    path.write_text("engine: {n_seq: 0}\n")
    assert run("daemon", "--check-config")[:2] == (0, "the configuration is valid\n")
    assert run("daemon", "--config", str(path), "--check-config")[0] == 1
    monkeypatch.setenv("UMA_CONFIG", str(path))
    assert run("daemon", "--check-config")[0] == 1
    assert served == []


def test_unknown_variables_are_warned_about(run, monkeypatch):
    monkeypatch.setenv("UMA_N_CTXX", "1")
    status, _, err = run("daemon", "--check-config")
    assert status == 0
    assert "uma-core: warning: the variable UMA_N_CTXX is not an option (did you mean 'UMA_N_CTX'?)\n" in err


def test_printed_config_is_a_valid_file_with_origins(run, tmp_path):
    status, out, _ = run("daemon", "--print-config", "--parallel", "3", "--lane-ceiling", "1000=background")
    assert status == 0
    assert "  n_seq: 3  # flag --parallel\n" in out
    assert "  n_ctx: 16384  # default\n" in out
    path = tmp_path / "printed.yaml"
    path.write_text(out)
    config, _ = load(Inputs({}, {}, str(path)))
    assert (config.engine.n_seq, config.access.lane_ceiling) == (3, {1000: "background"})


def test_a_map_is_given_in_one_flag_or_in_several(run, tmp_path):
    printed = [run("daemon", "--print-config", *flags)[1] for flags in (
        ("--lora", "tone=a.gguf", "--lora", "topic=b.gguf"),
        ("--lora", "tone=a.gguf,topic=b.gguf"),
    )]  # fmt: skip
    assert printed[0] == printed[1] and '  lora: {"tone": "a.gguf", "topic": "b.gguf"}  # flag --lora\n' in printed[0]


def test_printed_defaults_read_back_as_the_defaults(run):
    tree = yaml.safe_load(run("daemon", "--print-config")[1])
    assert set(tree) == {"model", "preset", *(opt.section for opt in OPTIONS)}
    assert sum(len(section) for section in tree.values() if isinstance(section, dict)) == sum(
        "." in opt.key for opt in OPTIONS
    )


def test_printed_json(run):
    rows = json.loads(run("daemon", "--print-config", "--json", "--n-batch", "256")[1])
    assert rows["engine.n_batch"] == {"value": 256, "origin": "flag --n-batch", "reload": "engine"}
    assert rows["engine.n_ubatch"]["origin"] == "default, lowered to engine.n_batch"
    assert rows["limits.max_tokens"]["value"] == Config().limits.max_tokens
    assert list(rows) == [opt.key for opt in OPTIONS]


@pytest.mark.parametrize("words", ["--json", "--check-config --json"])
def test_json_without_what_is_printed_is_refused(run, served, words):
    status, out, err = run("daemon", *words.split())
    assert (status, out, served) == (1, "", [])
    assert err == "uma-core: E_CONFIG_001 config_invalid: --json goes with --print-config\n"


def in_a_process(module, *arguments, **spawn):
    """Run it in a process of its own, forked with the daemon's modules; return (exit status, stderr)."""
    with tempfile.TemporaryFile() as errors:
        process = server_of(*IMPORTED).start(module, arguments, stderr=errors.fileno(), **spawn)
        status = process.wait(60)
        errors.seek(0)
        return status, errors.read().decode()


@pytest.mark.parametrize("words", ["version", "daemon --print-config", "daemon --print-config --json", "--help"])
def test_a_full_standard_output_is_one_line(words):
    """The exit status is 1 too: a script that stores the configuration must know that it was not stored."""
    with open("/dev/full", "wb") as full:
        status, err = in_a_process("uma_core", *words.split(), stdout=full.fileno())
    assert status == 1
    assert err == "uma-core: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("words", ["daemon --estimate", "daemon --print-config"])
def test_a_closed_standard_output_is_one_line(words):
    line = f"exec {sys.executable} -m uma_core {words} >&-"
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "uma-core: cannot write to standard output: Bad file descriptor\n"


@pytest.mark.parametrize("n", [8, 16])
@pytest.mark.parametrize("option", ["--http=18080", "--log-level=info"])
def test_too_few_descriptors_are_one_coded_line(n, option, tmp_path):
    """Without the check at the start, the shortage would show later: as a traceback or as a damaged model."""
    arguments = ("daemon", "--socket", str(tmp_path / "s"), option)
    status, err = in_a_process("uma_core", *arguments, limits={resource.RLIMIT_NOFILE: n})
    assert status == 1
    assert err == (
        "uma-core: E_CONFIG_001 config_invalid: the daemon needs 24 open files, the system allows "
        f"{n} (ulimit -Hn, LimitNOFILE)\n"
    )


@pytest.mark.parametrize(("engine", "name", "n"), [*(("fake", "", n) for n in range(5)), ("graph", "loader_", 0)])
def test_too_few_threads_are_one_coded_line_and_leave_no_socket(engine, name, n, tmp_path):
    path = tmp_path / "s"
    options = ("--engine", engine, "--threads", "2", "--socket", str(path))
    status, err = in_a_process("tests.few_threads", name, str(n), "daemon", *options, children=FORKED_HELPER)
    assert "E_MODEL_004 insufficient_memory: " in err and "thread" in err
    assert status == 1 and "Traceback" not in err and not path.exists()
