"""The pages about the appendices of the AUSSM paper: their code blocks give the values in the text."""

import math

import pytest


def count_drawings(page):
    return sum("<svg" in text for text in page.printed)


def test_each_class_of_systems_is_larger_than_the_one_before(run_page):
    page = run_page("docs/theory/expressivity.md")
    names = page.names
    assert len(names["inclusions"]) == 4
    assert max(names["inclusions"].values()) < 1e-12
    assert names["tone_errors"].pop("complex") < 1e-12
    assert min(names["tone_errors"].values()) > 1 - 1e-9  # 32 states are no better than none
    assert names["explained"].pop(1) == pytest.approx(1)
    assert max(map(abs, names["explained"].values())) < 1e-9
    assert names["parity_error"] < 1e-9
    assert names["rank_one"] == pytest.approx(math.sqrt(0.5))
    clock = names["one_clock"]
    assert clock[0.1] > 2
    assert clock[10] / clock[100] == pytest.approx(10, rel=0.3)  # inversely proportional
    assert clock[100] / clock[1000] == pytest.approx(10, rel=0.3)
    assert names["two_clocks"] < 1e-9
    assert names["blocks"] == {"C6": 1, "D4": 2, "S3": 2, "A4": 2, "S4": 3, "A5": None}
    assert names["counted"]["C6"][-1] == pytest.approx(1)
    assert names["counted"]["A5"][-1] == pytest.approx(1 / 60, rel=0.05)
    assert names["dense_right"] == names["stacked_right"] == 1
    assert names["rejected"]
    assert names["distance_left"]["AUSSM"] == pytest.approx(1, abs=1e-3)
    assert names["distance_left"]["S6"] < 0.05
    assert count_drawings(page) == 2


def test_derivation_is_right_and_misprints_are_not(run_page):
    page = run_page("docs/theory/derivation.md")
    names = page.names
    assert names["steps"].pop("1. exact hold, against the integral") < 1e-6
    assert len(names["steps"]) == 5
    assert max(names["steps"].values()) < 1e-12
    first, *_, before, last = names["euler_error"]
    assert first > 0.1
    assert before / last == pytest.approx(2, rel=0.2)  # first order
    assert names["commutators"]["A0 + u A1"] > 0.1 > 1e-12 > names["commutators"]["one basis"]
    assert names["lost"]["A0 + u A1"] > 0.1 > 1e-12 > names["lost"]["one basis"]
    assert len(names["printed"]) == 7
    assert min(names["printed"].values()) > 0.3
    assert max(names["right"].values()) < 1e-12
    assert names["negative"] == pytest.approx(0.5, abs=0.01)
    assert names["below"] == pytest.approx(0.5, abs=0.1)
    assert names["softplus_error"] > 1 > 1e-12 > names["right_softplus"]
    assert count_drawings(page) == 1


def test_rotations_conserve_norms_and_resonance_grows(run_page):
    page = run_page("docs/theory/rotations.md")
    names = page.names
    assert max(max(errors) for errors in names["lemmas"].values()) < 1e-12
    assert names["zeros"] == {size: size % 2 for size in names["zeros"]}
    assert max(names["half_turn"], names["pairing"]) < 1e-12
    assert max(names["weyl"].values()) <= 1 + 1e-9
    degrees = {strength: names["rotation_degrees"][f"ε = {strength}"].max() for strength in (0.3, 0.03, 0.003)}
    assert degrees[0.003] > 5 * degrees[0.03] > 25 * degrees[0.3]
    assert max((values - 1).abs().max() for values in names["spectra"]["AUSSM"]) < 1e-12
    assert names["spectra"]["S6"][-1].max() < 1e-20
    assert names["by_angle"] == pytest.approx({length: length for length in names["lengths"]})
    sizes = names["sizes"]
    assert sizes["at its frequency"][-1].item() == pytest.approx(10_000)
    assert sizes["0.02 away"].max() <= 1 / math.sin(0.01)
    assert sizes["at its frequency, |a| = 0.99"].max() <= 100 + 1e-9
    assert 10 < sizes["random"][-1] < 400  # about the square root of 10,000
    assert [math.log2(steps) for steps in names["stalls"].values()] == [8, 11, 24]
    assert names["share"] == pytest.approx(1, abs=1e-3)
    assert count_drawings(page) == 2


def test_rounded_rotations_count_up_to_their_horizon(run_page):
    page = run_page("docs/theory/rounding.md")
    names = page.names
    epsilon, counts, measured = names["EPSILON"], names["counts"], names["measured"]
    for dtype in epsilon:
        assert names["relative_to_bound"](f"products, {dtype}") <= 1
        assert names["relative_to_bound"](f"plain sum, {dtype}") > 100
    sums = {"eager, float32": 2, "eager, float64": 35, "cpu, float32": 7, "cpu, float64": 7}  # proved bounds in eps for each step
    for name in measured.keys() & sums.keys():
        worst = measured[name].max(1) / epsilon[name.split()[-1]]
        assert (worst <= sums[name] * counts + 4).all(), name
    for name in measured.keys() & {"eager, float32", "cpu, float32"}:
        assert names["relative_to_bound"](name) <= 1
    assert names["relative_to_bound"]("eager, float64") > 1  # the bound of products is not a bound of sums
    assert names["horizon"](10**6, "float64") == pytest.approx(1.27e10, rel=0.01)
    assert names["horizon"](5, "float32") == pytest.approx(4.4e6, rel=0.01)
    first_errors = names["first_errors"]
    allowed = [names["horizon"](int(k), "float32") for k in names["MODULI"]]
    assert all(step == 0 or step > bound for step, bound in zip(first_errors["products"], allowed, strict=True))
    assert first_errors["products"].any()
    assert ((first_errors["plain sum"] > 1000) & (first_errors["plain sum"] < 20_000)).all()
    assert not any(first_errors[backend].any() for backend in names["backends"])
    assert names["drift"].max() <= 1
    assert names["on_grid"] == {k: names["LENGTH"] % k for k in names["on_grid"]}
    assert count_drawings(page) == 1


def test_work_and_span_have_the_stated_values(run_page):
    page = run_page("docs/theory/work.md")
    names = page.names
    counted = names["counted"]
    per_step = {method: sum(counted[method, 1024][:2]) / 1024 for method in names["WAYS"]}
    assert per_step == pytest.approx({"loop": 8, "scan of maps": 28, "separable": 18}, rel=0.01)
    for method, depth in (("scan of maps", 6), ("separable", 4)):  # depth for each doubling of the length
        assert counted[method, 1024][3] - counted[method, 128][3] <= 3 * depth
        assert counted[method, 1024][3] < 60
    assert counted["loop", 1024][3] == pytest.approx(3 * 1024, rel=0.01)
    assert names["additions"] == {2**k: 2 * 2**k - 2 - k for k in range(1, 13)}
    table, steps = names["table"], names["STEPS"]
    assert table[1] == {"loop": 4095, "Blelloch": 8190, "doubling": 45_057, "loops and a scan of totals": 4095}
    assert names["pays"] == {"Blelloch": 4, "doubling": 16, "loops and a scan of totals": 4}
    assert all(abs(row["Blelloch"] - row["loops and a scan of totals"]) <= 1 for p, row in table.items() if p > 2)
    assert table[steps]["doubling"] == 12
    sizes = names["sizes"]
    assert all(
        long == pytest.approx(short, rel=0.3) for short, long in sizes.values()
    )  # the size of each step does not depend on the length
    assert sizes["plain torch", 64][1] - sizes["plain torch", 4][1] == pytest.approx(32 * 60, rel=0.01)
    assert max(sizes[name, 64][1] for name in names["backends"]) < 50
    assert len(names["chunked"]) == 4
    assert max(names["chunked"].values()) < 1e-11
    assert count_drawings(page) == 1
