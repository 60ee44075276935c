from __future__ import annotations

import ctypes
import io
import sys
from pathlib import Path

import pytest

from native import cmake_build
from native.pin import BuildError, Pin
from native.progress import Progress
from native.toolchain import Toolchain, find_toolchain


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UMA_OPENMP", "UMA_BUILD", "UMA_CMAKE_ARGS", "UMA_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("value", "expected"), [("0", "OFF"), ("off", "OFF"), ("1", "ON")])
def test_openmp_is_a_switch(pin: Pin, monkeypatch: pytest.MonkeyPatch, value: str, expected: str) -> None:
    monkeypatch.setenv("UMA_OPENMP", value)
    assert cmake_build.cmake_flags(pin, "cpu")["GGML_OPENMP"] == expected


@pytest.mark.parametrize(("words", "expected"), [("avx512_vnni amx_tile amx_int8", True), ("avx512_vnni", False)])
def test_amx_is_left_out_where_the_processor_has_it(
    pin: Pin, monkeypatch: pytest.MonkeyPatch, words: str, expected: bool
) -> None:
    monkeypatch.setattr(cmake_build, "cpu_identity", lambda: f"x86_64 fpu {words}")
    assert ("-mno-amx-tile" in cmake_build.cmake_flags(pin, "cpu").get("CMAKE_CXX_FLAGS", "")) is expected


def test_leaving_amx_out_keeps_the_flags_of_the_user(pin: Pin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cmake_build, "cpu_identity", lambda: "x86_64 amx_tile")
    monkeypatch.setenv("CFLAGS", "-O1")
    monkeypatch.setenv("CXXFLAGS", "-O2")
    flags = cmake_build.cmake_flags(pin, "cpu")
    assert flags["CMAKE_C_FLAGS"].startswith("-O1 -mno") and flags["CMAKE_CXX_FLAGS"].startswith("-O2 -mno")


def test_a_portable_build_uses_nothing_of_this_processor(pin: Pin, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not cmake_build.is_portable()
    monkeypatch.setenv("UMA_BUILD", "portable")
    flags = cmake_build.cmake_flags(pin, "cpu")
    assert flags["GGML_NATIVE"] == "OFF" and not cmake_build.is_native(flags, [])
    if cmake_build.has_variants(True):
        assert (flags["GGML_SSE42"], flags["GGML_AVX"], flags["GGML_AVX2"], flags["GGML_AVX512"]) == (
            "ON",
            "OFF",
            "OFF",
            "OFF",
        )


def test_an_unknown_kind_of_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMA_BUILD", "fast")
    with pytest.raises(BuildError, match="native or portable"):
        cmake_build.is_portable()


def test_the_pinned_commit_is_baked_in_and_git_is_not_asked(pin: Pin) -> None:
    flags = cmake_build.cmake_flags(pin, "cpu")
    assert flags["LLAMA_BUILD_COMMIT"] == pin.short_commit
    assert flags["GIT_EXE"] == ""


def test_backend_flags_are_used(pin: Pin) -> None:
    assert "B" not in cmake_build.cmake_flags(pin, "cpu")
    assert cmake_build.cmake_flags(pin, "cuda")["B"] == "2"


@pytest.mark.skipif(sys.platform == "darwin", reason="Apple's compilers have no static C++ runtime")
def test_a_static_cxx_runtime_stays_inside_each_library(
    pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several visible copies, the streams of one library used another library's locales, which ended in a
    segmentation fault.
    """
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.cpp").write_text(
        '#include <locale>\nextern "C" int length() { return (int) std::locale::classic().name().size(); }\n'
    )
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.14)\nproject(x CXX)\nadd_library(llama SHARED a.cpp)\n"
        "target_link_options(llama PRIVATE -static-libstdc++)\n"
    )
    monkeypatch.setenv("UMA_JOBS", "1")
    flags = cmake_build.cmake_flags(pin, "cpu")
    cmake_build.build(source, tmp_path / "build", flags, find_toolchain("cpu"), Progress(io.StringIO()))
    library = ctypes.CDLL(str(tmp_path / "build" / "libllama.so"))
    assert library.length() == len("C")
    assert not hasattr(library, "_ZNSt6locale7classicEv")


@pytest.mark.parametrize(
    ("flags", "arguments", "expected"),
    [
        ({}, [], True),
        ({"GGML_NATIVE": "OFF"}, [], False),
        ({"GGML_NATIVE": "ON"}, ["-DGGML_NATIVE=OFF"], False),
        ({"GGML_NATIVE": "ON"}, ["-DGGML_NATIVE:BOOL=off", "-DX=1"], False),
        ({"GGML_NATIVE": "OFF"}, ["-DGGML_NATIVE=1"], True),
    ],
)
def test_a_build_for_other_cpus_is_recognised(flags: dict[str, str], arguments: list[str], expected: bool) -> None:
    assert cmake_build.is_native(flags, arguments) is expected


@pytest.mark.parametrize(("value", "expected"), [("3", 3), ("0", None), ("x", None)])
def test_the_number_of_jobs_can_be_set(monkeypatch: pytest.MonkeyPatch, value: str, expected: int | None) -> None:
    default = cmake_build.n_jobs()
    monkeypatch.setenv("UMA_JOBS", value)
    assert cmake_build.n_jobs() == (expected or default)


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(name.encode())


def test_ships_each_library_once_under_the_name_the_loader_asks_for(tmp_path: Path) -> None:
    binaries = tmp_path / "build" / "bin"
    touch(
        binaries, "libllama.so.0.5.0", "libggml-base.so.0.25.3", "libother.so.1", "libllama-common.so.0", "llama-server"
    )
    (binaries / "libllama.so.0").symlink_to("libllama.so.0.5.0")
    (binaries / "libllama.so").symlink_to("libllama.so.0")
    (binaries / "libggml-base.so.0").symlink_to("libggml-base.so.0.25.3")
    (binaries / "libggml-base.so").symlink_to("libggml-base.so.0")
    cmake_build.collect(tmp_path / "build", tmp_path / "lib")
    assert {p.name for p in (tmp_path / "lib").iterdir()} == {"libllama.so.0", "libggml-base.so.0"}
    assert (tmp_path / "lib" / "libllama.so.0").read_bytes() == b"libllama.so.0.5.0"
    assert not (tmp_path / "lib" / "libllama.so.0").is_symlink()


def test_understands_macos_names(tmp_path: Path) -> None:
    touch(tmp_path, "libllama.0.5.0.dylib", "libllama.0.dylib", "libllama.dylib", "libggml-metal.dylib")
    assert set(cmake_build.ship_files(tmp_path)) == {"libllama.0.dylib", "libggml-metal.dylib"}


def test_a_build_without_libllama_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path / "bin", "libggml.so.0")
    with pytest.raises(BuildError, match="no libllama"):
        cmake_build.collect(tmp_path, tmp_path / "lib")


def fake_cmake(folder: Path, script: str) -> Toolchain:
    """A stand-in that records how it was called and then runs `script`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cmake.py"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(folder / 'calls')!r}, 'a').write(repr(sys.argv[1:]) + "
        f"'\\n')\n{script}\n"
    )
    path.chmod(0o755)
    return Toolchain(["cc"], ["c++"], str(path), "Ninja", "ninja", {"EXTRA": "1"}, "cc 1")


def test_configures_and_builds_with_all_flags_and_shows_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMA_CMAKE_ARGS", "-DCMAKE_CUDA_ARCHITECTURES=90a-real")
    sink = io.StringIO()
    tools = fake_cmake(
        tmp_path / "tools", "print('[1/2] Building C object a/b/x.c.o'); print('[2/2] Linking libllama.so')"
    )
    cmake_build.build(tmp_path / "src", tmp_path / "out", {"F": "1"}, tools, Progress(sink))
    configure, compile_ = (tmp_path / "tools" / "calls").read_text().splitlines()
    assert (
        "'-DF=1'" in configure and "'-DEXTRA=1'" in configure and "'-DCMAKE_CUDA_ARCHITECTURES=90a-real'" in configure
    )
    assert "'--target', 'llama'" in compile_
    assert "1/2] x.c" in sink.getvalue()


def test_a_failed_step_shows_the_end_of_the_log(tmp_path: Path) -> None:
    tools = fake_cmake(tmp_path / "tools", "print('fatal: no such file'); sys.exit(3)")
    with pytest.raises(BuildError, match=r"could not configure.*exit 3(.|\n)*fatal: no such file"):
        cmake_build.build(tmp_path / "src", tmp_path / "out", {}, tools, Progress(io.StringIO()))
