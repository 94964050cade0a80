"""PD-SSM: the equations of the paper, its straight-through derivative, and the word problem of A5 in one layer."""

import math
from itertools import permutations

import torch
from torch.nn.functional import gelu, one_hot

from longscan.layers import PDSSM
from longscan.layers.pdssm import one_hot_columns


def test_outputs_follow_the_equations() -> None:
    torch.manual_seed(0)
    layer = PDSSM(3, d_state=4, n_matrices=2).double()
    u = torch.randn(6, 3, dtype=torch.float64)
    B, C = torch.view_as_complex(layer.B.detach()), torch.view_as_complex(layer.C.detach())
    x, outputs = torch.tensor([1, 0, 0, 0], dtype=torch.complex128), []
    for u_t in u:
        s = (layer.selector @ u_t).softmax(0)
        M = s[0] * layer.matrices[0] + s[1] * layer.matrices[1]
        P = torch.zeros(4, 4, dtype=torch.complex128)
        for column in range(4):
            P[M[:, column].argmax(), column] = 1
        halves = gelu(layer.hidden_weight @ u_t + layer.hidden_bias).chunk(2)
        r, phi = ((W @ h + b).sigmoid() for W, h, b in zip(layer.factor_weight, halves, layer.factor_bias, strict=True))
        x = P @ torch.diag(torch.polar(r, 2 * math.pi * phi)) @ x + B @ u_t.to(torch.complex128)
        outputs.append((C @ x).real + layer.D * u_t)
    torch.testing.assert_close(layer(u.unsqueeze(0)).squeeze(0), torch.stack(outputs), rtol=1e-12, atol=1e-12)


def test_columns_are_one_hot_with_the_derivative_of_softmax() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn_like(logits)
    P = one_hot_columns(logits)
    assert torch.equal(P, one_hot(logits.argmax(-2), 5).mT.to(P.dtype))
    (found,) = torch.autograd.grad((weights * P).sum(), logits)
    (expected,) = torch.autograd.grad((weights * logits.softmax(-2)).sum(), logits)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_one_layer_follows_the_products_of_a5() -> None:
    """A dictionary with the permutations of the generators and factors of nearly 1 follow words of 200 letters."""
    generators = torch.tensor([(1, 2, 0, 3, 4), (1, 2, 3, 4, 0)])
    elements = [p for p in permutations(range(5)) if torch.linalg.det(torch.eye(5)[list(p)]) > 0]
    numbers = {element: number for number, element in enumerate(elements)}
    after = [[numbers[tuple(int(g[image]) for image in element)] for element in elements] for g in generators]
    layer = PDSSM(2, d_state=60, n_matrices=2)
    with torch.no_grad():
        for parameter in (layer.hidden_weight, layer.hidden_bias, layer.factor_weight, layer.B, layer.D):
            parameter.zero_()
        layer.factor_bias[0], layer.factor_bias[1] = 30, -30  # r = 1 and phi = 0 up to rounding
        layer.selector.copy_(30 * torch.eye(2))
        layer.matrices.copy_(10 * torch.stack([one_hot(torch.tensor(images), 60).mT for images in after]))
        torch.manual_seed(0)
        letters = torch.randint(2, (4, 200))
        layer_input = one_hot(letters, 2).float()
        state = layer(layer_input, return_state=True)[1].ssm[..., 0]
    for word, found in zip(letters.tolist(), state, strict=True):
        element = numbers[tuple(range(5))]
        assert element == 0  # the first unit vector stands for the identity
        for letter in word:
            element = after[letter][element]
        assert int(found.argmax()) == element
        assert float(found.max()) > 0.999
