"""The description of this machine and installation that belongs into a bug report."""

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import longscan
from longscan.ops import OPS
from longscan.ops.dispatch import (
    NATIVE,
    PASSED,
    native_cpu_missing,
    read_verdicts,
    unsupported_reason,
    verdicts_key,
    verdicts_path,
)

PACKAGES = ("torch", "triton", "numpy", "scikit-learn", "pandas", "safetensors", "transformers")
CPU_FLAGS = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl", "amx_tile", "asimd", "sve")
VARIABLES = ("LONGSCAN_", "OMP_", "MKL_", "MALLOC_", "TRITON_", "CUDA_VISIBLE_DEVICES", "PYTORCH_")  # prefixes
DRIVER_SECONDS = 10  # limit on the time that nvidia-smi may take


def describe_system() -> str:
    """Return the lines of `longscan doctor --system`: versions, processor, GPUs, kernels and saved verdicts.

    Nothing is compiled or run on a GPU. Environment variables are listed by name and value if they change how this package, torch
    or OpenMP compute; no others are.
    """
    rows = [
        ("longscan", longscan.__version__),
        ("Python", f"{platform.python_version()} ({platform.python_implementation()}, {sys.maxsize.bit_length() + 1} bit)"),
        *((package, _version(package)) for package in PACKAGES),
        ("OS", _operating_system()),
        ("CPU", _processor()),
        ("CPU flags", ", ".join(_cpu_flags()) or "unknown"),
        ("threads", f"{os.cpu_count()} processors, torch uses {torch.get_num_threads()}"),
        *_gpus(),
        ("CPU kernels", _cpu_kernels()),
        *(("ops", line) for line in _op_backends()),
        *(("verdicts", line) for line in _saved_verdicts()),
        *(("environment", f"{name}={value}") for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)),
    ]
    width = max(len(label) for label, _ in rows)
    labels = [label if i == 0 or rows[i - 1][0] != label else "" for i, (label, _) in enumerate(rows)]
    return "\n".join(f"{label:<{width}}  {text}" for label, (_, text) in zip(labels, rows, strict=True))


def _version(package: str) -> str:
    try:
        return torch.__version__ if package == "torch" else version(package)  # metadata lack the build, such as +cpu
    except PackageNotFoundError:
        return "not installed"


def _operating_system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform()
    return f"{platform.platform()} ({name})"


def _read_cpuinfo(*keys: str) -> str | None:
    """Return the first value in /proc/cpuinfo, which Linux has, with one of these keys; None if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return None
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() in keys), None)


def _processor() -> str:
    return f"{_read_cpuinfo('model name') or platform.processor() or 'unknown'}, {platform.machine()}"


def _cpu_flags() -> list[str]:
    """Return those of `CPU_FLAGS` that the processor has."""
    flags = (_read_cpuinfo("flags", "Features") or "").split()
    return [flag for flag in CPU_FLAGS if flag in flags]


def _gpus() -> list[tuple[str, str]]:
    if not torch.cuda.is_available():
        built = "torch is built without CUDA" if torch.version.cuda is None else f"torch is built for CUDA {torch.version.cuda}"
        return [("GPUs", f"none that torch can use ({built})")]
    rows = []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        memory = f"{about.total_memory / 2**30:.0f} GiB"
        rows.append(("GPUs", f"cuda:{index} {about.name}, {memory}, compute capability {about.major}.{about.minor}"))
    return [*rows, ("CUDA", f"{torch.version.cuda}, driver {_driver()}")]


def _driver() -> str:
    """Return the version of the NVIDIA driver, or why it is unknown."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown (no nvidia-smi)"
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown (nvidia-smi: {type(error).__name__})"
    return ", ".join(sorted(set(result.stdout.split()))) or "unknown"


def _cpu_kernels() -> str:
    missing = native_cpu_missing()
    if missing is not None:
        return f"not active: {missing}"
    from longscan.ops import _native

    return f"active, instruction set {_native.isa()}, {'with' if _native.openmp else 'without'} OpenMP"


def _op_backends() -> list[str]:
    """Return a line for each native backend with the ops that it runs here, and one for the ops without a native kernel."""
    devices = {"cpu": torch.device("cpu"), "triton": torch.device("cuda" if torch.cuda.is_available() else "cpu")}
    active = {
        backend: [op for op in OPS if unsupported_reason(op, backend, devices[backend], torch.float32, OPS[op].native) is None]
        for backend in NATIVE
    }
    lines = [f"{backend}: {', '.join(ops) or 'none'}" for backend, ops in active.items()]
    plain = [op for op in OPS if not any(op in ops for ops in active.values())]
    return [*lines, f"eager only: {', '.join(plain) or 'none'}"]


def _saved_verdicts() -> list[str]:
    """Return a line for each device of this machine with the verdicts that `longscan doctor` saved for these versions."""
    saved = read_verdicts()
    lines = []
    for device in [torch.device("cpu"), *(torch.device("cuda", i) for i in range(torch.cuda.device_count()))]:
        by_op = saved.get(verdicts_key(device), {})
        verdicts = [(op, backend, verdict) for op, found in by_op.items() for backend, verdict in found.items()]
        faults = [f"{op} ({backend}) {verdict}" for op, backend, verdict in verdicts if verdict != PASSED]
        passed = f"{len(verdicts) - len(faults)} passed" if verdicts else "none saved for these versions"
        lines.append(f"{device}: {'; '.join([passed, *faults])}")
    return [*lines, f"in {verdicts_path()}"]
