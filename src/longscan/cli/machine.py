"""The commands about this machine and its kernels: doctor and explain."""

from typing import TYPE_CHECKING, Annotated

from longscan._errors import SettingError, count_text
from longscan._types import Doc
from longscan.cli._console import echo, print_table
from longscan.cli.runs import RunFolder

if TYPE_CHECKING:
    import torch


def explain(
    run: RunFolder,
    *,
    device: Annotated[str, Doc("cpu, cuda, cuda:1, ...")] = "cpu",
) -> int:
    """Print which backend runs each op of a run's model on this machine, and which modules use no op of this package."""
    from longscan._devices import find_device
    from longscan.ops import explain
    from longscan.training.run import Run

    try:
        found = find_device(device, "--device")
    except ValueError as error:
        raise SettingError(str(error)) from None
    echo(str(explain(Run(run).model().to(found))))
    return 0


def doctor(
    *,
    device: Annotated[str | None, Doc("cpu, cuda, cuda:1, ... (default: all devices)")] = None,
    system: Annotated[bool, Doc("only describe this machine, for a bug report")] = False,
) -> int:
    """Describe this machine and compare every kernel, forward and backward, with float64; `auto` then leaves out faulty ones."""
    import torch

    from longscan._devices import find_device
    from longscan.doctor import kernels
    from longscan.system import describe_system

    names = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))] if device is None else [device]
    try:
        devices = [find_device(name, "--device") for name in names]
    except ValueError as error:
        raise SettingError(str(error)) from None
    echo(describe_system())
    if system:
        return 0
    echo("")
    faults = 0
    for one in devices:
        if list(kernels(one)):
            faults += _print_findings(one)
        else:
            echo(f"{one}: no native kernels, ops run on the eager backend")
    echo(f"{count_text(faults, 'fault')}: `auto` will not use these kernels here" if faults else "no fault found")
    return 1 if faults else 0


def _print_findings(device: "torch.device") -> int:
    """Test the kernels of a device, print a table of them and return the number of faults."""
    from rich.table import Table

    from longscan.doctor import doctor

    faults = 0
    table = Table("kernel", "calls", "worst: call, result", "error", "allowed", "verdict", title=f"kernels on {device}")
    for findings in doctor(device):
        faulty = [finding for finding in findings if finding.fault]
        faults += len(faulty)
        worst = faulty[0] if faulty else max(findings, key=lambda finding: finding.error / finding.allowed)
        table.add_row(
            f"{worst.op}, {worst.backend}", str(len(findings)), f"{worst.call}, {worst.worst}", f"{worst.error:.1e}",
            f"{worst.allowed:.1e}", f"{len(faulty)} faults; {worst.fault}" if faulty else "passed",
        )  # fmt: skip
    print_table(table)
    return faults
