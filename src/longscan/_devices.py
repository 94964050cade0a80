"""The torch device of a setting, or one line that says which there are."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def find_device(name: "str | torch.device", argument: str = "device") -> "torch.device":
    """The device of a name, "auto" being an accelerator where there is one; ValueError where this machine has none of that name.

    argument: what the setting is called in errors.
    """
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name == "auto":
        return torch.device("cpu") if accelerator is None else accelerator
    try:
        device = torch.device(name)
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"{argument}: got {name!r}, expected 'auto' or a device of torch ({first})") from None
    count = 1 if device.type == "cpu" else 0
    if accelerator is not None and device.type == accelerator.type:
        count = torch.accelerator.device_count()
    if (device.index or 0) >= count:
        there = ["cpu"]
        if accelerator is not None:
            there += [f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())]
        raise ValueError(f"{argument}: got {str(name)!r}, expected one of the devices that torch finds here: {', '.join(there)}")
    return device
