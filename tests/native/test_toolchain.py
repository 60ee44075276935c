from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from native import toolchain
from native.build import ROOT
from native.cmake_build import extra_arguments
from native.pin import BuildError


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it, no tools from PyPI, and no CC. Returns the only folder on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CC", "CXX", "CUDACXX", "CUDA_HOME", "CUDA_PATH", "VULKAN_SDK", "UMA_CMAKE_ARGS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("cmake", "ninja"):
        monkeypatch.setitem(sys.modules, name, None)
    return folder


def program(folder: Path, name: str, says: str = "1.0") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{name} {says}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("variable", ["CC", "CXX", "UMA_CMAKE_ARGS"])
def test_an_open_quote_in_a_variable_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, 'cc "-O2')
    with pytest.raises(BuildError, match=f'^{variable}=cc "-O2: No closing quotation'):
        extra_arguments() if variable == "UMA_CMAKE_ARGS" else toolchain.find_toolchain("cpu")


def test_one_message_names_everything_that_is_missing(bare_machine: Path) -> None:
    with pytest.raises(BuildError) as caught:
        toolchain.find_toolchain("cpu")
    text = str(caught.value)
    assert "a C and C++ compiler" in text and "CMake" in text and "ninja or make" in text
    assert "apt install build-essential" in text or "xcode-select --install" in text
    assert "pip install cmake ninja" in text


def test_only_what_is_missing_is_named(bare_machine: Path) -> None:
    for name in ("cc", "c++", "make"):
        program(bare_machine, name)
    with pytest.raises(BuildError) as caught:
        toolchain.find_toolchain("cpu")
    assert "CMake" in str(caught.value)
    assert "compiler" not in str(caught.value)


def test_a_warm_cache_needs_only_the_compiler(bare_machine: Path) -> None:
    for name in ("cc", "c++"):
        program(bare_machine, name)
    tools = toolchain.find_toolchain("cpu", needs_cmake=False)
    assert (tools.cc, tools.cmake) == (["cc"], "")


def test_tools_of_the_package_index_stand_in(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cc", "c++"):
        program(bare_machine, name)
    packaged = tmp_path / "packaged"
    packaged.mkdir()
    cmake, ninja = program(packaged, "cmake"), program(packaged, "ninja")
    monkeypatch.setitem(sys.modules, "cmake", SimpleNamespace(CMAKE_BIN_DIR=str(packaged)))
    monkeypatch.setitem(sys.modules, "ninja", SimpleNamespace(BIN_DIR=str(packaged)))
    tools = toolchain.find_toolchain("cpu")
    assert (tools.cmake, tools.make_program, tools.generator) == (str(cmake), str(ninja), "Ninja")


def test_a_wrapper_that_cannot_run_is_not_taken_for_cmake(bare_machine: Path) -> None:
    for name in ("cc", "c++", "make"):
        program(bare_machine, name)
    broken = bare_machine / "cmake"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(BuildError, match="CMake"):
        toolchain.find_toolchain("cpu")


def test_make_serves_where_ninja_is_missing(bare_machine: Path) -> None:
    for name in ("cc", "c++", "make", "cmake"):
        program(bare_machine, name)
    assert toolchain.find_toolchain("cpu").generator == "Unix Makefiles"


def test_the_identity_changes_with_the_compiler_version(bare_machine: Path) -> None:
    for name in ("cc", "c++", "make", "cmake"):
        program(bare_machine, name)
    before = toolchain.find_toolchain("cpu").identity
    program(bare_machine, "c++", "2.0")
    assert toolchain.find_toolchain("cpu").identity != before


def test_the_compiler_of_the_environment_is_preferred(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cc", "c++", "mycc", "make", "cmake"):
        program(bare_machine, name)
    monkeypatch.setenv("CC", "mycc -m64")
    assert toolchain.find_toolchain("cpu").cc == ["mycc", "-m64"]


@pytest.mark.parametrize(("backend", "tool"), [("cuda", "nvcc"), ("vulkan", "glslc")])
def test_a_backend_names_its_own_tools(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch, backend: str, tool: str
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(bare_machine / "none"))
    for name in ("cc", "c++", "make", "cmake"):
        program(bare_machine, name)
    with pytest.raises(BuildError, match=tool):
        toolchain.find_toolchain(backend)


def test_headers_of_vulkan_that_are_missing_are_named_before_anything_is_compiled(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, only the compiler noticed old headers, after ten minutes."""
    for name in ("cc", "make", "cmake", "glslc"):
        program(bare_machine, name)
    compiler = bare_machine / "c++"  # finds the headers in one of its folders
    compiler.write_text(
        """#!/bin/sh
read -r include
case $include in *vulkan*) wanted=vulkan ;; *) wanted=spirv ;; esac
for word in "$@"; do
  case $word in -I*) test -e "${word#-I}/$wanted" && exit 0 ;; esac
done
exit 1
"""
    )
    compiler.chmod(0o755)
    new, sdk = bare_machine / "new", bare_machine / "sdk"
    with pytest.raises(BuildError, match=r"libvulkan-dev.*spirv-headers"):
        toolchain.find_toolchain("vulkan")
    (new / "vulkan").mkdir(parents=True)
    monkeypatch.setenv("UMA_CMAKE_ARGS", f"-DGGML_LTO=ON '-DVulkan_INCLUDE_DIR={new}'")
    with pytest.raises(BuildError, match=r"needs SPIR-V's headers"):
        toolchain.find_toolchain("vulkan")
    (sdk / "include" / "spirv").mkdir(parents=True)
    monkeypatch.setenv("VULKAN_SDK", str(sdk))
    assert toolchain.find_toolchain("vulkan").cxx == ["c++"]
    monkeypatch.delenv("VULKAN_SDK")
    assert toolchain.find_toolchain("vulkan", needs_cmake=False), "a build from the cache compiles nothing of it"


def test_the_cuda_compiler_becomes_part_of_the_identity(bare_machine: Path) -> None:
    for name in ("cc", "c++", "make", "cmake"):
        program(bare_machine, name)
    nvcc = program(bare_machine, "nvcc", "12.4")
    tools = toolchain.find_toolchain("cuda")
    assert tools.extra == {"CMAKE_CUDA_COMPILER": str(nvcc)}
    assert "nvcc 12.4" in tools.identity


def test_an_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMA_BACKEND", "abacus")
    with pytest.raises(BuildError, match="choose one of cpu, cuda, vulkan, metal"):
        toolchain.chosen_backend()


def test_the_default_backend_follows_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UMA_BACKEND", raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert toolchain.chosen_backend() == "metal"
    monkeypatch.setattr(sys, "platform", "linux")
    assert toolchain.chosen_backend() == "cpu"
    monkeypatch.setenv("UMA_BACKEND", "metal")
    with pytest.raises(BuildError, match="needs macOS"):
        toolchain.chosen_backend()


def test_the_command_prints_one_line_and_exits_1(tmp_path: Path) -> None:
    (tmp_path / "cmake.py").write_text("raise ImportError\n")
    env = {"PATH": str(tmp_path), "UMA_BUILD_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, str(ROOT / "native" / "build.py")], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("uma-serve: building llama.cpp needs a C and C++ compiler")
    assert len(done.stderr.strip().splitlines()) == 1
