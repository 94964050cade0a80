"""Types for the annotations of functions that are defined inside traced functions."""

from torch import Tensor

# torch.compile before 2.10 cannot trace `Tensor | None` in the annotations of a function that is defined while it traces.
OptionalTensor = Tensor | None
