"""The base class of models: a stack of blocks from a spec, the arguments of the constructor as configuration, and files."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from longscan._errors import names_argument
from longscan._files import checked_path
from longscan._specs import SPEC_VERSION
from longscan.layers._settings import bind_arguments
from longscan.layers.parameters import Marked
from longscan.models.saving import CONFIG, WEIGHTS, read_model, write_model
from longscan.models.spec import BlockSpec, parse_spec


class PretrainedModel(Marked):
    """Base class of `SequenceModel`, `LanguageModel`, `Forecaster` and `SiameseModel`.

    The arguments of the constructor of a subclass are JSON-able values, of which `config` is a copy:
    `type(model)(**model.config)` is a model of the same architecture with new weights.

    Args:
        blocks: the stack as a list of `{"layer", "block", "options"}`, see `longscan.models.parse_spec`.

    Attributes:
        entries: the stack as a list with all keys, `list[BlockSpec]`.
    """

    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Check the arguments of the constructor, and store them for `config`. Copying and unpickling pass none."""
        model = super().__new__(cls, *args, **kwargs)
        bound = bind_arguments(cls, args, kwargs)
        if bound is not None:
            bound.apply_defaults()
            model._arguments = bound.arguments
        return model

    def __init__(self, blocks: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.entries: list[BlockSpec] = parse_spec(list(blocks))

    @property
    def config(self) -> dict[str, Any]:
        """A copy of the constructor's arguments, JSON-able values by name."""
        return copy.deepcopy({**self._arguments, "blocks": self.entries})

    @classmethod
    def from_spec(
        cls,
        spec: str | Sequence[Mapping[str, Any]],
        *,
        d_state: int = 16,
        block_options: Mapping[str, Mapping[str, Any]] | None = None,
        **arguments: Any,
    ) -> Self:
        """Build a model with new weights from a spec.

        Args:
            spec: the names of the blocks from the input to the output, such as `(mamba aussm)*2`, `s4d*6` or `mamba[s4d]*4`, or
                a list of `{"layer", "block", "options"}`; see `longscan.models.parse_spec`.
            d_state: default of the option d_state of all layers that have it.
            block_options: more options by the name of a block in the spec, for example `{"aussm": {"phase_dt": True}}`.
            arguments: the arguments of the class, without `blocks`, such as d_model.

        Raises ValueError naming what is wrong with the spec, its options or an argument; TypeError for an unknown argument.
        """
        return cls(parse_spec(spec, d_state=d_state, block_options=block_options), **arguments)

    def save_pretrained(self, folder: str | Path, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Write config.json and model.safetensors into `folder`, which is created if necessary.

        state_dict: the tensors to write instead of `self.state_dict()`, as for a model whose parameters are split over processes.
        """
        tensors = self.state_dict() if state_dict is None else dict(state_dict)
        write_model(checked_path("folder", folder), {"spec_version": SPEC_VERSION, **self.config}, tensors)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, backend: str | None = None) -> Self:
        """Read a model that `save_pretrained` wrote, on the CPU and in the saved dtypes.

        Like a new model it is in training mode, in which dropout is random: call `eval()` before predictions. Reading does not
        change the state of torch's random generators.

        backend: backend of its ops, in place of the saved one; None for the saved one.

        Raises FileNotFoundError naming a missing file, NotADirectoryError for a file in place of the folder, ValueError naming a
        damaged file or an argument that this class does not have or needs.
        """
        folder = checked_path("folder", folder)
        config, tensors = read_model(folder)
        path, parameters = folder / CONFIG, inspect.signature(cls).parameters
        if "model_type" in config:
            raise ValueError(
                f"{path} must have settings of {cls.__name__}, got those of a {config['model_type']} model of transformers; "
                "longscan.models.from_transformers reads such a folder"
            )
        version = config.pop("spec_version", 1)  # the names of layers and blocks are the same in both versions
        if version not in (1, SPEC_VERSION):
            raise ValueError(f"{path}: `spec_version` must be at most {SPEC_VERSION}, got {version!r}; a later version wrote it")
        required = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
        if unknown := sorted(config.keys() - parameters.keys()):
            readers = [f"{name}.from_pretrained" for name in _classes_with(set(config))]
            hint = f"; {' or '.join(readers)} reads it" if readers else "; another class wrote it"
            raise ValueError(f"{path} must have settings of {cls.__name__}, got {', '.join(unknown)[:200]}{hint}")
        if missing := sorted(required - config.keys()):
            raise ValueError(f"{path} must have the settings {', '.join(missing)} of {cls.__name__}, got a file without them")
        try:
            # New weights on "meta" draw no numbers from torch's random generator, which is that of the whole program.
            with torch.device("meta"):
                model = cls(**config if backend is None else {**config, "backend": backend})
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, MemoryError, OverflowError) as error:
            if names_argument(error, "backend"):  # about this machine or the argument, not about the file
                raise
            raise ValueError(f"{path} is damaged ({str(error)[:300]})") from error
        try:
            model.load_state_dict(tensors, assign=True)
        except RuntimeError as error:
            raise ValueError(
                f"{folder / WEIGHTS} must have the weights of the model of {CONFIG}, got others ({_first_problem(error)})"
            ) from error
        return model


def _first_problem(error: Exception) -> str:
    """Return the first problem that `load_state_dict` found; its message has a title and then a line for each problem."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[min(1, len(lines) - 1)][:300]


def _classes_with(settings: set[str]) -> list[str]:
    """Return the names of the classes of `longscan.models` whose models can have all these settings."""
    from longscan import models

    classes = [one for one in vars(models).values() if isinstance(one, type) and issubclass(one, PretrainedModel)]
    return [one.__name__ for one in classes if settings <= inspect.signature(one).parameters.keys()]
