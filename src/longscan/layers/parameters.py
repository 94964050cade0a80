"""Options of a parameter for the optimiser and for casts, declared where the parameter is created.

`mark` stores the options on the parameter. `Marked` modules preserve them through deepcopy, pickling and casts, and keep
precision-sensitive parameters (eigenvalues, angles, step-size biases) in float32 when the module is cast to fp16 or bf16.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from longscan.layers._settings import check_init_args

P = TypeVar("P", bound=Tensor)
Role = Literal["ssm", "selector", "dense", "norm", "embedding"]


class ParameterOptions(NamedTuple):
    """Options of one parameter.

    Attributes:
        role: the kind of parameter, by which optimiser groups can be formed.
        lr_scale: factor on the learning rate.
        decay: whether weight decay applies.
        keep_float32: whether the parameter stays float32 when its module is cast to fp16 or bf16.
    """

    role: Role = "dense"
    lr_scale: float = 1.0
    decay: bool = True
    keep_float32: bool = False


def mark(parameter: P, role: Role, *, lr_scale: float = 1.0, decay: bool = True, keep_float32: bool = False) -> P:
    """Store options on `parameter`, see `ParameterOptions`, and return it."""
    parameter._longscan_options = ParameterOptions(role, lr_scale, decay, keep_float32)  # type: ignore[attr-defined]
    return parameter


def float32_parameter(values: Tensor, role: Role = "ssm", *, lr_scale: float = 1.0, decay: bool = False) -> nn.Parameter:
    """Return a parameter with a copy of `values` in torch's default dtype, which stays float32 in casts to fp16 and bf16.

    See `ParameterOptions` for the other arguments.
    """
    parameter = nn.Parameter(values.to(torch.get_default_dtype()).clone())
    return mark(parameter, role, lr_scale=lr_scale, decay=decay, keep_float32=True)


def parameter_options(parameter: Tensor) -> ParameterOptions:
    """Return the options that `mark` stored on a parameter; the defaults of `ParameterOptions` if it stored none."""
    return cast("ParameterOptions", getattr(parameter, "_longscan_options", ParameterOptions()))


class Marked(nn.Module):
    """Base of modules whose parameters have options (`mark`) that casts, copies and loading preserve.

    The constructors of subclasses raise ValueError, naming the argument, for values that are not of the declared types.
    """

    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls) -> None:
        """Set the signature of the class to that of its constructor; Python before 3.11.4 may show that of `__new__`."""
        super().__init_subclass__()
        signature = inspect.signature(cls.__init__)
        cls.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Check the types of the arguments before the constructor runs.

        Python passes `__new__` the arguments of every subclass's constructor, so it has to accept any. `check_init_args` binds
        them to the signature of that constructor, which raises TypeError for unknown names.
        """
        check_init_args(cls, args, kwargs)
        return super().__new__(cls)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        by_name = {name: parameter_options(parameter) for name, parameter in self.named_parameters()}
        kept = [parameter for parameter in self.parameters() if parameter_options(parameter).keep_float32]
        sensitive = {id(x) for parameter in kept for x in (parameter, parameter.grad)}

        def convert(x: Tensor) -> Tensor:
            converted = fn(x)
            if id(x) in sensitive and converted.dtype in (torch.bfloat16, torch.float16):
                return x.to(converted.device, torch.float32)
            return converted

        super()._apply(convert, recurse)  # type: ignore[no-untyped-call]
        self._restore(by_name)
        return self

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state dict as in `nn.Module.load_state_dict`; with `assign` new parameters get the options of the old ones."""
        by_name = {name: parameter_options(parameter) for name, parameter in self.named_parameters()}
        result = super().load_state_dict(state_dict, strict, assign)
        self._restore(by_name)
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_marks": {name: parameter_options(parameter) for name, parameter in self.named_parameters()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        by_name = state.pop("_marks")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._restore(by_name)

    def _restore(self, by_name: dict[str, ParameterOptions]) -> None:
        for name, parameter in self.named_parameters():
            parameter._longscan_options = by_name[name]  # type: ignore[attr-defined]
