"""Where things stand in the drawings of automata: pure geometry, shared by the still pictures and the page that steps."""

import math
from typing import NamedTuple

import numpy as np

from longscan.automata.dfa import DFA

BESIDE = math.radians(25)  # between an edge's ends and the straight line, about
LABELS = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8)  # where along an edge its letters may stand, the best first
ENOUGH = 0.14  # room around letters
CROWDED = 200  # edges: among more of them letters have no room anywhere
AT_RIM = 0.85  # 1 - t of the parabola where it crosses a state's rim

Edge = tuple[int, int]


class Arrow(NamedTuple):
    """An edge: a curve (points, 2) from the rim of one state to that of another, its letters and where they stand."""

    source: int
    target: int
    curve: np.ndarray
    label: str
    at: tuple[float, float]


def circle(count: int) -> np.ndarray:
    """Places of `count` states on a circle of radius 1, clockwise from the left: (count, 2)."""
    if count == 1:
        return np.zeros((1, 2))
    angle = np.pi - 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def state_radius(count: int) -> float:
    """The radius of a state's disc that leaves room between `count` of them on the circle."""
    return min(0.2, 0.36 * math.sin(math.pi / max(count, 2)))


def _bend(count: int) -> float:
    """How far an edge swings out, as a share of its length. Lines from one of `count` places on a circle to the others are
    pi / count apart; edges leave and arrive at uneven multiples of a quarter of that, so that none begins where another ends.
    """
    half = math.pi / count / 2
    beside = min(((k + 0.5) * half for k in range(count)), key=lambda angle: abs(angle - BESIDE))
    return math.tan(beside) / 4 / AT_RIM


def arrows(dfa: DFA) -> list[Arrow]:
    """The edges of a state diagram on the circle: bent to the right, so that two between the same states part; loops outside."""
    places, radius, share = circle(dfa.size), state_radius(dfa.size), _bend(dfa.size)
    curves, spots = {}, {}  # an edge's points; where its letters may stand
    for source, target in dfa.edges():
        p, q = places[source], places[target]
        if source == target:
            out = p / np.linalg.norm(p) if np.linalg.norm(p) else np.array([0.0, 1.0])
            side = np.array([-out[1], out[0]])
            turn = np.linspace(0.8, 2 * np.pi - 0.8, 30)[:, None]
            centre = p + out * radius * 1.55
            curve = centre - 0.75 * radius * (np.cos(turn) * out + np.sin(turn) * side)
            spots[source, target] = (p + out * radius * 2.85)[None]
        else:
            along = (q - p) / np.linalg.norm(q - p)
            right = np.array([along[1], -along[0]])
            middle = (p + q) / 2 + 2 * share * np.linalg.norm(q - p) * right
            t = np.linspace(0, 1, 60)[:, None]
            curve = (1 - t) ** 2 * p + 2 * t * (1 - t) * middle + t**2 * q
            outside = (np.linalg.norm(curve - p, axis=1) > radius * 1.05) & (np.linalg.norm(curve - q, axis=1) > radius * 1.15)
            curve = curve[outside]
            spots[source, target] = curve[[round(way * (len(curve) - 1)) for way in LABELS]] + 0.07 * right
        curves[source, target] = curve
    at = _apart(curves, spots if len(spots) <= CROWDED else {edge: own[:1] for edge, own in spots.items()})
    return [Arrow(*edge, curves[edge], ",".join(letters), at[edge]) for edge, letters in dfa.edges().items()]


def _apart(curves: dict[Edge, np.ndarray], spots: dict[Edge, np.ndarray]) -> dict[Edge, tuple[float, float]]:
    """For each edge its first spot with room to other edges and to the letters placed before, or the one with the most room."""
    points = np.concatenate([curve[::3] for curve in curves.values()])
    owners = np.concatenate([np.full(len(curve[::3]), number) for number, curve in enumerate(curves.values())])
    placed: list[np.ndarray] = []
    for number, own in enumerate(spots.values()):
        others = np.concatenate([points[owners != number], *placed])
        room = [np.linalg.norm(others - spot, axis=1).min(initial=ENOUGH) for spot in own]
        placed.append(own[[int(np.argmax(room))]])
    return {edge: (float(spot[0, 0]), float(spot[0, 1])) for edge, spot in zip(spots, placed, strict=True)}


def pinned(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Directions of the values of a counter, and of the borders between the sectors that decode to them: two (count, 2)."""
    angle = 2 * np.pi * np.arange(count) / count
    half = angle + np.pi / count
    return np.stack([np.cos(angle), np.sin(angle)], 1), np.stack([np.cos(half), np.sin(half)], 1)
