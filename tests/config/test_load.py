"""Where values come from, and what happens to wrong values."""

import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from native import build as native_build
from uma_core.config.load import SCHEMA, Inputs, diff, load
from uma_core.config.options import OPTIONS, Config
from uma_core.config.schema import write_value
from uma_core.errors import ErrorCode, UmaError

TRACKER = """
model: "/models/demo.gguf"
ipc:
  uds_path: "/tmp/uma.sock"
  backlog: 64
limits:
  max_sessions: 32
  max_prompt_bytes: 65536
  max_tokens: 2048
scheduler:
  # batch budget adapts automatically toward ~30 ms; optional hints:
  tick_budget_ms: 30
  start_target_tokens: 32
metrics:
  tick_interval_ms: 1000
"""


def build(flags=None, environ=None, path=""):
    return load(Inputs(flags or {}, environ or {}, path))


def refusal(**inputs) -> str:
    with pytest.raises(UmaError) as caught:
        build(**inputs)
    assert caught.value.error is ErrorCode.CONFIG_INVALID
    assert "\n" not in caught.value.message
    return caught.value.message


def test_without_inputs_all_is_default():
    config, sources = build()
    assert config == Config()
    assert set(sources.origins.values()) == {"default"}
    assert sources.warnings == ()


def test_the_documents_example_loads(write):
    path = write(TRACKER)
    config, sources = build(path=path)
    assert config.engine.model == "/models/demo.gguf"
    assert config.scheduler.tick_budget_ms == 30.0
    assert config.limits.max_prompt_bytes == 65536
    assert sources.origins["model"] == f"file {path}"
    assert sources.origins["engine.n_ctx"] == "default"


def test_flag_beats_variable_beats_file_beats_default(write):
    path = write("engine: {n_seq: 5, n_batch: 600, n_ctx: 4096}\n")
    config, sources = build({"engine.n_seq": "7"}, {"UMA_N_SEQ": "6", "UMA_N_BATCH": "700"}, path)
    engine = config.engine
    assert (engine.n_seq, engine.n_batch, engine.n_ctx, engine.threads) == (7, 700, 4096, 0)
    origins = [sources.origins[f"engine.{name}"] for name in ("n_seq", "n_batch", "n_ctx", "threads")]
    assert origins == ["flag --parallel", "variable UMA_N_BATCH", f"file {path}", "default"]


def test_a_reload_with_another_model_keeps_the_other_inputs(write):
    _, sources = build({"engine.n_seq": "7"}, {"UMA_N_CTX": "1024"}, write("model: a.gguf\n"))
    config, _ = load(sources.inputs.with_flag("model", "b.gguf"))
    assert (config.engine.model, config.engine.n_seq, config.engine.n_ctx) == ("b.gguf", 7, 1024)


@pytest.mark.parametrize("text", ["", "# nothing\n", "ipc:\n", "---\n"])
def test_an_empty_file_or_section_changes_nothing(write, text):
    assert build(path=write(text))[0] == Config()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("engin: {n_ctx: 1}", "engin is not an option (did you mean 'engine'?)"),
        ("engine: {n_ctxx: 1}", "engine.n_ctxx is not an option (did you mean 'engine.n_ctx'?)"),
        ("engine: {model: x}", "engine.model is not an option (did you mean 'model'?)"),
        ("n_ctx: 4", "n_ctx is not an option (did you mean 'engine.n_ctx'?)"),
        ("engine: 4", "engine must be a section with options in it"),
        ("engine: {n_ctx: '4096'}", "engine.n_ctx must be a whole number, 0 to 16777216, not '4096'"),
        ("engine: {n_ctx: 4.5}", "engine.n_ctx must be a whole number, 0 to 16777216, not 4.5"),
        ("engine: {n_ctx: true}", "engine.n_ctx must be a whole number, 0 to 16777216, not True"),
        ("engine: {n_ctx: null}", "engine.n_ctx has no value"),
        ("engine: {n_seq: 0}", "engine.n_seq must be 1 to 256, not 0"),
        ("scheduler: {guard_cap: .nan}", "scheduler.guard_cap must be 1 to 100, not nan"),
        ("scheduler: {guard_cap: .inf}", "scheduler.guard_cap must be 1 to 100, not inf"),
        (
            "engine: {kv_type: q8}",
            "engine.kv_type must be one of f16, bf16, q8_0, q4_0, not 'q8' (did you mean 'q8_0'?)",
        ),
        ("ipc: {echo: 1}", "ipc.echo must be true or false, not 1"),
        ("ipc: {uds_path: 5}", "ipc.uds_path must be a string, not 5"),
        ('ipc: {uds_path: "a\\0b"}', "ipc.uds_path must not contain NUL"),
        ("model: ~/m.gguf", "model must be a path without ~, which only shells replace, not '~/m.gguf'"),
        ("cache: {disk_dir: ~/kv}", "cache.disk_dir must be a path without ~"),
        ("engine: {lora: {tone: ~/t.gguf}}", "engine.lora must be a path without ~"),
        ("access: {allow_uids: 5}", "access.allow_uids must be a list"),
        ("access: {allow_uids: [x]}", "access.allow_uids must be a whole number, 0 to 4294967294, not 'x'"),
        ("access: {allow_uids: [-1]}", "access.allow_uids must be 0 to"),
        (
            "access: {lane_ceiling: {1000: fast}}",
            "access.lane_ceiling must be one of interactive, background, not 'fast'",
        ),
        ("access: {lane_ceiling: [1000]}", "access.lane_ceiling must be a map"),
        ("engine: {lora: [tone]}", "engine.lora must be a map"),
        ("engine: {lora: {tone: 3}}", "engine.lora must be a string, not 3"),
        ("engine: {lora: {3: a.gguf}}", "engine.lora must be a string, not 3"),
        ("engine: {lora: {'a b': a.gguf}}", "engine.lora must have ids of up to 64 letters"),
        ("engine: {lora: {tone: ''}}", "engine.lora must give tone a path"),
        (
            "engine: {lora: {tone: a.gguf}, lora_scale: {tonne: 1}}",
            "must name adapters of engine.lora, not 'tonne' (did you mean 'tone'?)",
        ),
        (
            "engine: {lora: {tone: a.gguf}, lora_scale: {tone: high}}",
            "engine.lora_scale must be a number, -1000 to 1000, not 'high'",
        ),
        ("engine: {lora: {tone: a.gguf}, lora_scale: {tone: 1e9}}", "engine.lora_scale must be"),
        (
            "scheduler: {stages: [admission, admission]}",
            "scheduler.stages do not make a policy: scheduler stage 'admission' is listed twice",
        ),
        (
            "scheduler: {stages: []}",
            "scheduler.stages do not make a policy: without admission, decode_first, prefill_order, prefill_budget",
        ),
        (
            "scheduler: {stages: [admission, turbo]}",
            "scheduler.stages do not make a policy: unknown scheduler stage 'turbo'",
        ),
        (
            "scheduler: {stages: [admission, decode_first, prefill_budget]}",
            "scheduler.stages do not make a policy: without prefill_order some request is never served",
        ),
        ("scheduler: {bmt_budget: -0.5}", "scheduler.bmt_budget must be auto (-1), off (0) or a bandwidth"),
        ("engine: {n_ctx: 2, n_seq: 4}", "engine.n_ctx must give each of the 4 sequences at least one cell"),
        ("engine: {n_ctx: 1, n_ctx: 2}", "the key 'n_ctx' appears twice"),
        ("engine: {n_ctx: 4096}\nengine.n_ctx: 8192", "engine.n_ctx appears twice"),
        ("engine.n_ctx: 8192\nengine: {n_ctx: 4096}", "engine.n_ctx appears twice"),
        ("- 1", "must contain sections, not list"),
        ("a: [", "is not YAML"),
        ("a: 2001-99-99", "is not YAML"),
        ("a: &x [*x]", "the alias '*x': write the value itself"),
        ("engine: &x {n_ctx: 1}\nlog: {<<: *x}", "the alias '*x'"),
        ("engine: {n_ctx: 1:30}", "engine.n_ctx must be a whole number, 0 to 16777216, not '1:30'"),
        ("engine: {n_ctx: 0x" + "9" * 5000 + "}", "engine.n_ctx must be"),
        ("? 0x" + "9" * 5000 + "\n: 1", "a whole number of 20000 bits is not an option"),
        ("engine: {? 0x" + "9" * 5000 + " : 1}", "engine.a whole number of 20000 bits is not an option"),
        ("scheduler: {tick_budget_ms: 1:30.5}", "scheduler.tick_budget_ms must be a number, 1 to 10000, not '1:30.5'"),
        ("engine: {threads: many}", "engine.threads must be a whole number, 0 to 1024 or auto, not 'many'"),
        ("? {a: 1}\n: 2", "is not YAML"),
        ("!!python/object/apply:os.getpid []", "is not YAML"),
        (b"a: \xff\xfe", "is not YAML"),
        ("engine: {load_mode: !!bool maybe}", "'maybe' is not a bool"),
        ("engine: {n_ctx: !!int ''}", "'' is not an int"),
        ("engine: {n_ctx: !!timestamp soon}", "'soon' is not a timestamp"),
    ],
)
def test_a_wrong_file_is_refused_by_name(write, text, said):
    path = write(text)
    message = refusal(path=path)
    assert said in message
    assert path in message
    assert "<unicode string>" not in message  # this is the parser's name for the file


def test_all_problems_are_told_at_once(write):
    with pytest.raises(UmaError) as caught:
        build({"engine.n_seq": "x"}, {"UMA_N_BATCH": "0"}, write("engine: {n_ctxx: 1}\n"))
    assert [problem.split()[0] for problem in caught.value.detail["problems"]] == [
        "engine.n_ctxx",
        "engine.n_batch",
        "engine.n_seq",
    ]


def test_flags_and_variables_are_named_when_wrong():
    assert "(flag --n-ctx)" in refusal(flags={"engine.n_ctx": "4k"})
    assert "(variable UMA_N_CTX)" in refusal(environ={"UMA_N_CTX": ""})


def test_aliases_of_aliases_are_refused_at_once(write):
    """A few hundred bytes stand for a thousand million values."""
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    message = refusal(path=write("\n".join([*lines, "engine: *a9"])))
    assert "the alias '*a0'" in message and len(message) < 1000


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"a{i}: 1\n" for i in range(1_500)),
        "engine:\n" + "".join(f"  a{i}: 1\n" for i in range(1_500)),
        "engine: [" + "x, " * 2_500 + "]",
        "engine: {n_ctx: '" + "x" * 100_000 + "'}",
        "engine: {kv_type: '" + "x" * 100_000 + "'}",
        "scheduler: {stages: ['" + "x" * 100_000 + "']}",
        "x" * 100_000 + ": 1",
        "a: !" + "x" * 100_000 + " 1",
        "a: {" + "x" * 100_000 + ": 1, " + "x" * 100_000 + ": 1}",
    ],
    ids=range(9),
)
def test_a_large_wrong_file_has_a_short_error(write, text):
    assert len(refusal(path=write(text))) < 20_000


def test_what_stands_for_a_number_still_does(write):
    path = write("engine: {n_ctx: 4_096, n_batch: 0x100, n_ubatch: +128}\nscheduler: {tick_budget_ms: 30.5}\n")
    config = build(path=path)[0]
    assert (config.engine.n_ctx, config.engine.n_batch, config.engine.n_ubatch) == (4096, 256, 128)
    assert config.scheduler.tick_budget_ms == 30.5


@pytest.mark.parametrize("text", ["1e3", "1E+3", "1.e3", "1.0e3", "1000.", "1_0e2", "+1e3"])
def test_numbers_with_exponents_are_those_of_json(write, text):
    assert build(path=write(f"scheduler: {{aging_ms: {text}}}"))[0].scheduler.aging_ms == 1000


def test_an_unreadable_file_is_refused():
    assert "cannot read /nowhere/uma.yaml" in refusal(path="/nowhere/uma.yaml")


def test_only_regular_files_are_read(tmp_path):
    """A pipe without a writer, or an endless device, would block its reader for ever."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        assert f"cannot read {path}: not a regular file" in refusal(path=str(path))


def test_a_huge_file_is_refused(write):
    assert "larger than a configuration can be" in refusal(path=write("#" * (1 << 20) + "\n"))


def test_a_value_above_its_cap_is_refused_but_a_default_follows():
    assert "engine.n_ubatch must be at most engine.n_batch (256), not 512" in refusal(
        flags={"engine.n_batch": "256", "engine.n_ubatch": "512"}
    )
    assert "ipc.tx_soft_bytes must be at most" in refusal(
        flags={"ipc.tx_soft_bytes": "9000", "ipc.tx_hard_bytes": "8000"}
    )
    config, sources = build({"engine.n_batch": "256", "limits.max_tokens": "100"})
    assert (config.engine.n_ubatch, config.limits.default_max_tokens) == (256, 100)
    assert sources.origins["engine.n_ubatch"] == "default, lowered to engine.n_batch"


@pytest.mark.parametrize(("word", "value"), [("on", "on"), ("off", "off"), ("auto", "auto"), ("true", "on")])
def test_yaml_on_and_off_are_choices_where_choices_say_so(write, word, value):
    assert build(path=write(f"engine: {{flash_attn: {word}}}\n"))[0].engine.flash_attn == value


def test_words_stand_for_numbers(write):
    for config in (build({"scheduler.bmt_budget": "auto"})[0], build(path=write("scheduler: {bmt_budget: auto}\n"))[0]):
        assert config.scheduler.bmt_budget == -1.0
    assert build({"engine.n_gpu_layers": "ALL"})[0].engine.n_gpu_layers == -1


def test_lists_and_maps_as_text():
    config, _ = build(
        {"access.allow_uids": "1000, 1001", "access.lane_ceiling": "1000=background", "access.admin_uids": ""}
    )
    assert config.access.allow_uids == (1000, 1001)
    assert config.access.lane_ceiling == {1000: "background"}
    assert config.access.admin_uids == ()
    engine = build({"engine.lora": "tone=a=b.gguf, topic=c.gguf", "engine.lora_scale": "topic=-0.5"})[0].engine
    assert (engine.lora, engine.lora_scale) == ({"tone": "a=b.gguf", "topic": "c.gguf"}, {"topic": -0.5})
    assert "must be a number" in refusal(flags={"engine.lora": "tone=a.gguf", "engine.lora_scale": "tone=x"})
    assert "key=value" in refusal(flags={"access.lane_ceiling": "1000"})


@pytest.mark.parametrize(
    ("key", "text", "twice"),
    [
        ("access.lane_ceiling", "1000=background, 01000=interactive", "1000"),
        ("engine.lora", "tone=a.gguf,tone=b.gguf", "'tone'"),
    ],
)
def test_a_key_of_a_map_may_not_appear_twice(key, text, twice):
    said = f"{key} has the key {twice} twice"
    assert said in refusal(flags={key: text})
    assert said in refusal(environ={SCHEMA.by_key[key].env: text})


@pytest.mark.parametrize(("environ", "level"),
[({"UMA_DEBUG": "1"}, "debug"), ({"UMA_DEBUG": "0"}, "info"), ({"UMA_DEBUG": ""}, "info"),
                                               ({"UMA_DEBUG": "1", "UMA_LOG_LEVEL": "WARN"}, "warning")])  # fmt: skip
def test_debug_variable(environ, level):
    config, sources = build(environ=environ)
    assert config.log.level == level
    assert (sources.origins["log.level"] == "default") == (level == "info")


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("off", False), ("", False)])
def test_switches_from_variables(text, value):
    assert build(environ={"UMA_ECHO": text})[0].ipc.echo is value


def test_unknown_variables_are_warned_about_and_foreign_ones_are_not():
    _, sources = build(environ={"UMA_N_CTXX": "1", "UMA_BACKEND": "cuda", "UMA_CONFIG": "x", "PATH": "/bin"})
    assert sources.warnings == ("the variable UMA_N_CTXX is not an option (did you mean 'UMA_N_CTX'?)",)


def test_variables_of_the_build_are_not_warned_about():
    """A user who built with them still has them set when the daemon starts."""
    names = set(re.findall(r"UMA_[A-Z_]+", native_build.__doc__ or ""))
    assert names and not build(environ=dict.fromkeys(names, "x"))[1].warnings


def test_diff_lists_changes_and_how_they_take_effect():
    old, new = build()[0], build({"log.level": "debug", "engine.n_ctx": "8192", "ipc.uds_path": "/tmp/other"})[0]
    changes = {change.key: change for change in diff(old, new)}
    assert {key: (c.reload, c.is_reloadable) for key, c in changes.items()} == {
        "engine.n_ctx": ("engine", True),
        "ipc.uds_path": ("restart", False),
        "log.level": ("live", True),
    }
    assert (changes["log.level"].old, changes["log.level"].new) == ("info", "debug")
    assert diff(old, old) == []


def test_kernels_are_not_changed_under_a_running_engine():
    """The kernels belong to the process: threads that find different kernels within one graph would wait for each other
    for ever.
    """
    old, new = build()[0], build({"engine.cpu_kernels": "false"})[0]
    assert [(change.key, change.is_reloadable) for change in diff(old, new)] == [("engine.cpu_kernels", False)]


@given(st.sampled_from(OPTIONS), st.text(st.characters(exclude_categories=("Cs",))))
def test_any_text_is_a_value_or_a_coded_error(opt, text):
    for flags, environ in (({opt.key: text}, {}), ({}, {opt.env: text})):
        try:
            config, _ = build(flags, environ)
        except UmaError as error:
            assert error.error is ErrorCode.CONFIG_INVALID and opt.key.split(".")[0] in error.message
        else:
            assert isinstance(SCHEMA.get(config, opt), opt.kind)


YAML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(OPTIONS), YAML_VALUES)
def test_any_yaml_value_is_a_value_or_a_coded_error(tmp_path_factory, opt, value):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    section, _, name = opt.key.rpartition(".")
    path.write_text(yaml.safe_dump({section: {name: value}} if section else {name: value}), encoding="utf-8")
    try:
        config, _ = build(path=str(path))
    except UmaError as error:
        assert error.error is ErrorCode.CONFIG_INVALID
    else:
        assert isinstance(SCHEMA.get(config, opt), opt.kind)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_config_or_a_coded_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(data)
    try:
        build(path=str(path))
    except UmaError as error:
        assert error.error is ErrorCode.CONFIG_INVALID


def test_text_that_no_system_call_takes_is_refused(write):
    with pytest.raises(UmaError, match="disk_dir must not contain half of a surrogate pair"):
        build(path=write('cache: {disk_dir: "\\ud800"}'))


def test_what_is_written_is_read_back(write):
    adapters = {"engine.lora": "on=a: 'b'.gguf,2=c.gguf", "engine.lora_scale": "2=0.5"}
    flags = {
        **adapters,
        "access.lane_ceiling": "1000=background",
        "access.allow_uids": "1,2",
        "model": 'a: "b" # c \U0001f600\u202e\u00e9\x7f\udcff',
        "scheduler.guard_cap": "1.25",
        "scheduler.guard_floor_ms": "0.00001",
    }
    config, _ = build(flags)
    lines = [f"model: {write_value(config.engine.model)}"]
    for section in dict.fromkeys(opt.section for opt in OPTIONS):
        lines += [f"{section}:"]
        lines += [
            f"  {opt.name}: {write_value(v)}"
            for opt, v in SCHEMA.items(config)
            if opt.section == section and "." in opt.key
        ]
    assert build(path=write(os.linesep.join(lines)))[0] == config


@pytest.mark.parametrize(
    "text, key, value",
    [
        ("engine: {calibrate: off}", "engine.calibrate", "off"),
        ("cache: {pressure: off}", "cache.pressure", "off"),
        ("engine: {flash_attn: on}", "engine.flash_attn", "on"),
        ("scheduler: {bmt_budget: off}", "scheduler.bmt_budget", 0.0),
    ],
)
def test_off_and_on_without_quotes_mean_what_they_say(tmp_path, text, key, value):
    """YAML 1.1 reads them as booleans."""
    path = tmp_path / "config.yaml"
    path.write_text(text)
    config, _ = load(Inputs({}, {}, str(path)))
    assert SCHEMA.get(config, SCHEMA.by_key[key]) == value


def test_a_boolean_where_it_means_nothing_is_refused(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("engine: {calibrate: on}")
    with pytest.raises(UmaError):
        load(Inputs({}, {}, str(path)))


@pytest.mark.parametrize("text", ["127.0.0.1:9464", "[::1]:9464", "localhost:0", "127.8.0.1:1", "::1:9464"])
def test_metrics_may_be_read_at_addresses_of_this_machine_alone(text):
    assert build({"metrics.listen": text})[0].metrics.listen == text


@pytest.mark.parametrize(
    "text", ["0.0.0.0:9464", ":9464", "9464", "[::]:9464", "example.org:80", "10.0.0.1:80", "127.0.0.1", "127.0.0.1:",
    "127.0.0.1:65536",
             "127.0.0.1:-1", "127.0.0.1:\u0665"])  # fmt: skip
def test_metrics_are_not_offered_to_other_machines(text):
    assert "metrics.listen" in refusal(flags={"metrics.listen": text})
