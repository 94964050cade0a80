"""The torch device that a setting names."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def find_device(name: "str | torch.device", argument: str = "device") -> "torch.device":
    """Return the device of a name; "auto" is an accelerator if there is one. Raises ValueError if this machine has none.

    argument: the name of the setting in errors.
    """
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name == "auto":
        return torch.device("cpu") if accelerator is None else accelerator
    try:
        device = torch.device(name)
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"`{argument}` must be 'auto' or a device of torch ({first}), got {name!r}") from None
    count = 1 if device.type == "cpu" else 0
    if accelerator is not None and device.type == accelerator.type:
        count = torch.accelerator.device_count()
    if (device.index or 0) >= count:
        there = ["cpu"]
        if accelerator is not None:
            there += [f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())]
        raise ValueError(f"`{argument}` must be one of the devices that torch finds here ({', '.join(there)}), got {str(name)!r}")
    return device
