"""The kernels as GPUs would run them, compiled without one: what they take, how they round, and what is said where that cannot be told."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from triton.runtime.driver import driver

from physarum import Params, UsageError, World
from physarum.backends import needs, triton_backend
from physarum.cli.kernels import kernels as command
from physarum.model.maps import Maps
from physarum.profiling import resources as resources_module
from physarum.profiling.resources import CAPABILITIES, LIMITS, VARIANTS, Compiled, Resources, compile_kernels, occupancy, resources

KERNELS = ("sense+motor", "deposit", "diffuse+decay")

# Above today's figures (Triton 3.6 and 3.9), at the next number that costs warps: with so many registers a thread a multiprocessor holds
# at least 48 warps at 40 registers, 32 at 64, 24 at 80, 20 at 96, 16 at 128.
MOST_REGISTERS = {
    "sense+motor": {"plain": 40, "every map": 64, "largest": 64},
    "deposit": {"plain": 40, "every map": 40, "largest": 40},
    "diffuse+decay": {"plain": 80, "every map": 96, "largest": 128},
}

# Triton 3.6 brings the ptxas of CUDA 12.9, which contracts pairs of products and sums whatever it is told; that of 3.7 does not.
CONTRACTED = {"10.0"} if version("triton").startswith("3.6.") else set()

# What float32 operations of PTX may be used: each rounds once, or not at all. Floor takes denormals for 0, of which the model makes none.
EXACT = re.compile(r"(add|sub|mul)\.rn\.f32(x2)?|(neg|selp|mov|setp\.\w+)\.f32|cvt\.(rn\.f32\.s32|rzi\.s32\.f32|rmi(\.ftz)?\.f32\.f32)")


@pytest.fixture(scope="module")
def taken() -> list[Resources]:
    return resources()


@pytest.fixture(scope="module")
def compiled(taken: list[Resources]) -> list[Compiled]:
    return list(compile_kernels())  # Triton remembers them


@pytest.fixture
def one_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources_module, "VARIANTS", {"plain": VARIANTS["plain"]})


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Let Triton take a tool of NVIDIA's that fails for its own, and no kernel that it has compiled before."""

    def put(name: str) -> None:
        path = tmp_path / name
        release = "Cuda compilation tools, release 12.8, V12.8.93"
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{release}" && exit\necho {name} is ill >&2\nexit 255\n')
        path.chmod(0o755)
        monkeypatch.setenv(f"TRITON_{name.upper()}_PATH", str(path))
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    return put


def float_operations(ptx: str) -> set[str]:
    """The instructions of a kernel that have to do with floating point, without predicates and operands."""
    words = re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.]*)\s", ptx, re.MULTILINE)
    return {word for word in words if re.search(r"\.b?f(16|32|64)", word)}


# What a kernel takes


def test_every_kernel_is_there_for_every_variant_and_capability(taken: list[Resources]) -> None:
    assert [(r.capability, r.variant, r.kernel) for r in taken] == [(c, v, k) for c in CAPABILITIES for v in VARIANTS for k in KERNELS]


def test_no_kernel_spills(taken: list[Resources]) -> None:
    assert [r for r in taken if r.stack or r.local] == []


def test_registers_are_few_enough_to_keep_warps(taken: list[Resources]) -> None:
    assert [r for r in taken if not 8 <= r.registers <= MOST_REGISTERS[r.kernel][r.variant]] == []


def test_shared_memory_is_too_little_to_cost_warps(taken: list[Resources]) -> None:
    assert [r for r in taken if r.occupancy != occupancy(r.capability, r.registers, 0, triton_backend.OPTIONS["num_warps"])] == []


@pytest.mark.parametrize(
    ("capability", "registers", "shared", "warps", "share"),
    [  # computed with cuda_occupancy.h
        ("9.0", 32, 0, 4, 1),
        ("9.0", 33, 0, 4, 48 / 64),
        ("9.0", 72, 0, 4, 28 / 64),
        ("9.0", 255, 0, 4, 8 / 64),
        ("9.0", 32, 40_000, 4, 20 / 64),
        ("8.6", 40, 0, 4, 1),
        ("8.6", 41, 0, 4, 40 / 48),
        ("8.6", 16, 2048, 1, 16 / 48),
        ("8.9", 16, 2048, 1, 24 / 48),
        ("12.0", 16, 8192, 2, 22 / 48),
    ],
)
def test_occupancy_is_nvidias(capability: str, registers: int, shared: int, warps: int, share: float) -> None:
    assert occupancy(capability, registers, shared, warps) == share


# That these are the kernels of a run


def test_the_arguments_are_those_of_a_run(compiled: list[Compiled]) -> None:
    typed: dict[str, set[str]] = {}
    named: dict[str, set[str]] = {}
    for kernel, _, _, code in compiled:
        assert list(code.src.signature) == code.src.fn.arg_names
        named[kernel] = set(code.src.signature)
        typed.setdefault(kernel, set()).update(name for name, kind in code.src.signature.items() if kind != "constexpr")
    assert set(named) == set(KERNELS)
    for kernel, names in named.items():
        assert typed[kernel] == {name for name in names if not name.isupper()}, "each has a type in some variant"


def test_each_variant_has_its_own_kernels(compiled: list[Compiled]) -> None:
    assert len({code.hash for *_, code in compiled}) == len(compiled)
    types = {(c.kernel, c.variant): str(c.code.src.constants) for c in compiled}
    assert {variant for (_, variant), constants in types.items() if "int64" in constants} == {"largest"}


def test_the_maps_are_those_of_a_world() -> None:
    (width, height), _, _ = variant = VARIANTS["every map"]
    maps = {"food": np.ones((height, width)), "walls": np.zeros((height, width)), "light": np.ones((2, height, width))}
    real = Maps.of([World((Params(), Params()), **maps)], (width, height))
    made = resources_module.Compiler(variant)._maps
    assert [(m.shape, m.dtype, m.is_contiguous()) for m in made] == [(m.shape, m.dtype, m.is_contiguous()) for m in real]


def test_no_memory_is_taken() -> None:
    backend = resources_module.Compiler(VARIANTS["largest"])
    tensors = [*backend._now.agents, backend._now.trail, *backend._maps, *backend._counts, backend._table, backend._clock]
    assert {t.device.type for t in tensors} == {"meta"}


def test_triton_is_left_as_it_was(one_variant: None, tool: Callable[[str], None]) -> None:
    before = dict(vars(driver))
    for _ in compile_kernels(["9.0"]):
        assert vars(driver) == before
    tool("ptxas")
    with pytest.raises(UsageError):
        list(compile_kernels(["8.7"]))
    assert vars(driver) == before


# How it rounds


def test_every_float_operation_rounds_on_its_own(compiled: list[Compiled]) -> None:
    found = {c[:3]: float_operations(c.code.asm["ptx"]) for c in compiled}
    assert {key: odd for key, names in found.items() if (odd := {name for name in names if not EXACT.fullmatch(name)})} == {}
    assert all(any(name.startswith("mul.rn.f32") for name in names) for key, names in found.items() if key[0] != "deposit")


def test_nothing_is_contracted_in_machine_code(taken: list[Resources]) -> None:
    assert {r.capability for r in taken if r.fused} == CONTRACTED


def test_spilling_and_contracting_are_seen(one_variant: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(triton_backend.OPTIONS, "enable_fp_fusion", True)
    monkeypatch.setitem(triton_backend.OPTIONS, "maxnreg", 24)
    worse = {r.kernel: r for r in resources(["9.0"])}
    assert worse["sense+motor"].fused > 0
    assert worse["diffuse+decay"].fused > 0
    assert worse["diffuse+decay"].stack > 0
    assert worse["diffuse+decay"].registers <= 24


# The command


@pytest.fixture
def known(taken: list[Resources], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command tell what has been found already."""
    monkeypatch.setattr(resources_module, "resources", lambda asked: [r for c in asked for r in taken if r.capability == c])


@pytest.mark.parametrize("spelling", [None, ("9.0,10.0",), ("9.0", "10.0"), ("9.0, 10.0", "8.0")])
def test_the_table(spelling: tuple[str, ...] | None, known: None, taken: list[Resources], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(capability=spelling) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == list(asdict(taken[0]))
    assert {len(line) for line in lines} == {len(head)}
    asked = re.findall(r"[\d.]+", str(spelling)) if spelling else CAPABILITIES
    for line, r in zip(lines, resources_module.resources(asked), strict=True):
        assert line.split() == f"{r.kernel} {r.variant} {' '.join(map(str, list(asdict(r).values())[2:-1]))} {r.occupancy:.0%}".split()


def test_json(known: None, taken: list[Resources], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(capability=("8.6",), as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == [asdict(r) for r in taken if r.capability == "8.6"]


def test_help_names_the_capabilities_that_are_taken() -> None:
    assert f"[{','.join(CAPABILITIES)}]" in get_type_hints(command, include_extras=True)["capability"].__metadata__[0].help
    assert set(CAPABILITIES) <= set(LIMITS)


# What cannot be


@pytest.mark.parametrize("capability", ["", "9", "90", "9.1", "sm_90", "7.5", "9.0,", "-9.0", "\n"])
def test_an_unknown_capability_is_one_sentence(capability: str) -> None:
    with pytest.raises(UsageError, match=r"^the compute capability '.*' is not known.*: it must be one of 8\.0, .*, 12\.1$"):
        command(capability=(capability,))


LACKS: dict[str, tuple[Any, str]] = {
    "an interpreter": (lambda patch: patch.setenv("TRITON_INTERPRET", "1"), "Triton's compiler, which .* TRITON_INTERPRET replaces"),
    "no Triton": (lambda patch: patch.setattr(needs.importlib.util, "find_spec", lambda _: None), "Triton, which is not installed"),
    "an old Triton": (
        lambda patch: patch.setattr(needs.importlib.metadata, "version", lambda _: "3.3.1"),
        "Triton 3.4 or newer: this is 3.3.1",
    ),
}


@pytest.mark.parametrize("lack", LACKS)
def test_what_is_missing_is_said(lack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, said = LACKS[lack]
    change(monkeypatch)
    with pytest.raises(UsageError, match=f"^compiling the kernels needs {said}"):
        command()


def test_no_c_compiler_is_needed(one_variant: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert "C compiler" in (needs.lacking_build_tools() or "")
    assert len(list(compile_kernels(["8.9"]))) == len(KERNELS)


def test_a_refusal_of_the_assembler_is_one_sentence(
    one_variant: None, tool: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    tool("ptxas")
    with pytest.raises(
        UsageError, match=r"^Triton [\d.]+ cannot compile a kernel for the compute capability 8\.7: .*ptxas is ill"
    ) as error:
        resources(["8.7"])
    assert str(error.value).isprintable()
    assert capfd.readouterr().out == ""


def test_machine_code_that_cannot_be_read_is_one_sentence(one_variant: None, tool: Callable[[str], None]) -> None:
    tool("cuobjdump")
    with pytest.raises(UsageError, match=r"^Triton [\d.]+ cannot read a kernel for the compute capability 9\.0: cuobjdump is ill$"):
        resources(["9.0"])
