"""CompiledAutomaton models: the weights compute the automaton, certificates, and errors of what cannot be compiled."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from longscan import automata
from longscan.automata import LimitExceeded, NonSolvableError, PrecisionError
from longscan.automata.compiler import CompiledAutomaton, all_words
from longscan.automata.languages import NAMED
from longscan.models import SequenceModel
from longscan.ops.dispatch import native_cpu_missing
from native import BACKENDS

QUICK = ["parity", "mod 6", "(ab)*", "a*b*", "S3", "Q8", "flip-flop and parity", "S3 and resets"]


def make_random_words(dfa: automata.DFA, words: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, len(dfa.alphabet), (words, length)))


def count_errors(compiled: CompiledAutomaton, words: torch.Tensor) -> int:
    """Return the number of prefixes after which the state or the answer of the model is wrong."""
    states = torch.from_numpy(compiled.dfa.run(words.numpy()))
    n_wrong = 0
    done = 0
    for logits, stream in compiled.run(words):
        expected = states[:, done : done + logits.shape[1]]
        accepted = torch.isin(expected, torch.tensor(sorted(compiled.dfa.accept)))
        n_wrong += int(((compiled.read_states(stream) != expected) | ((logits.argmax(-1) == 1) != accepted)).sum())
        done += logits.shape[1]
    assert done == words.shape[1]
    return n_wrong


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", QUICK)
def test_model_is_right_for_short_and_long_words(name, backend):
    compiled = automata.compile(NAMED[name](), backend=backend)
    assert count_errors(compiled, all_words(compiled.dfa, 8 if len(compiled.dfa.alphabet) == 2 else 5)) == 0
    assert count_errors(compiled, make_random_words(compiled.dfa, 4, 150)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [name for name in NAMED if name not in ("A5", "S5", "S5 and a reset")])
def test_model_of_every_named_automaton_is_right(name, backend):
    compiled = automata.compile(NAMED[name](), backend=backend)
    assert count_errors(compiled, all_words(compiled.dfa, 8)) == 0
    assert count_errors(compiled, make_random_words(compiled.dfa, 20 if backend == "reference" else 200, 1000)) == 0
    assert compiled.verify().safe_length is None


SPECS = {  # spec of the blocks, sizes of counters, sizes of flip-flops
    "parity": ("am", (2,), ()), "mod 6": ("am", (2, 3), ()), "(ab)*": ("mmmm", (), (2, 2)),
    "Dyck depth 8": ("m" * 18, (), (2,) * 9), "S3": ("aam", (2, 3), ()), "A4": ("aam", (3, 2, 2), ()),
    "S4": ("aaam", (2, 3, 2, 2), ()), "Q8": ("aam", (2, 2, 2), ()), "F20 on 5 points": ("aam", (4, 5), ()),
    "flip-flop and parity": ("amm", (2,), (3,)), "S3 and resets": ("aamm", (2, 3), (3,)),
}  # fmt: skip


def test_model_sizes_are_known_before_compiling():
    sizes = {name: automata.model_size(NAMED[name]()) for name in SPECS}
    assert {name: (size.spec, size.counters, size.flip_flops) for name, size in sizes.items()} == SPECS
    for name in ("S3", "S3 and resets"):
        model = automata.compile(NAMED[name]()).model
        assert sum(p.numel() for p in model.parameters()) == sizes[name].parameters


def test_number_of_aussm_blocks_is_the_derived_length():
    for name, length in (("parity", 1), ("S3", 2), ("A4", 2), ("S4", 3)):
        assert automata.model_size(NAMED[name]()).spec.count("a") == length


@pytest.mark.parametrize("options", [
    {"series": "prime"}, {"phase": "float"}, {"layout": "am"}, {"layout": "ma"}, {"dtype": "float64"},
    {"phase": "float", "dtype": "float64", "series": "prime"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", ["F20 on 5 points", "flip-flop and parity"])
def test_options_do_not_change_the_answers(name, options):
    compiled = automata.compile(NAMED[name](), **options)
    assert count_errors(compiled, all_words(compiled.dfa, 5)) == 0
    assert count_errors(compiled, make_random_words(compiled.dfa, 3, 300)) == 0
    certificate = compiled.verify()
    assert certificate.is_certified
    assert (certificate.safe_length is None) == (options.get("phase", "grid") == "grid")
    if "layout" in options:
        assert compiled.spec == (options["layout"] * 9)[: len(compiled.spec)]


def test_phase_grid_is_exact_for_a_long_word():
    dfa = automata.mod(5)
    compiled = automata.compile(dfa)
    words = make_random_words(dfa, 1, 100_000)
    assert count_errors(compiled, words) == 0
    _, stream = next(iter(compiled.run(words)))
    first = compiled.plan.offsets[1]
    assert torch.allclose(stream[..., first : first + 2].norm(dim=-1), torch.ones(()), atol=1e-6)


def test_length_beyond_the_certified_one_without_grid_raises():
    dfa = automata.mod(31)
    compiled = automata.compile(dfa, phase="float")
    certified = compiled.verify().safe_length
    assert certified is not None
    assert 10_000 < certified < 10_000_000
    assert count_errors(compiled, torch.ones(1, min(certified, 50_000), dtype=torch.int64)) == 0
    automata.compile(dfa, phase="float", length=certified)
    with pytest.raises(PrecisionError, match=f"`length` must be at most {certified}, .*, got {certified + 1}") as caught:
        automata.compile(dfa, phase="float", length=certified + 1)
    assert (caught.value.required, caught.value.certified) == (certified + 1, certified)
    assert automata.compile(dfa, length=10**12).verify().safe_length is None


def test_automata_of_one_state_or_one_letter_can_be_compiled():
    accept_all = automata.compile(automata.from_regex("(a|b)*"))
    assert accept_all.report.needs == "none"
    assert accept_all.accepts(["", "ab"]) == [True, True]
    assert accept_all.verify().is_certified
    accept_none = automata.compile(automata.from_regex("(a|b)*").complement())
    assert accept_none.accepts(["", "ab"]) == [False, False]
    thirds = automata.compile(automata.from_regex("(aaa)*"))
    assert [thirds.accepts(["a" * n])[0] for n in range(7)] == [n % 3 == 0 for n in range(7)]
    first = automata.compile(automata.from_regex("a"))
    assert first.accepts(["", "a", "aa", "aaa"]) == [False, True, False, False]


@pytest.mark.parametrize("method", ["accepts", "states"])
def test_text_in_place_of_several_words_raises(method):
    """The letters of a text would be taken for words, although `DFA.accepts` takes one word."""
    compiled = automata.compile(automata.from_regex("(ab)*"))
    with pytest.raises(TypeError, match=r"`words` must be several words, such as \['abab'\], got the text 'abab'"):
        getattr(compiled, method)("abab")


def test_words_that_are_no_collection_raise():
    compiled = automata.compile(automata.mod(3))
    with pytest.raises(TypeError, match="`words` must be several words, got None"):
        compiled.accepts(None)
    with pytest.raises(ValueError, match=r"`words` must have shape \(words, length\), got \(3,\)"):
        compiled.states(torch.zeros(3, dtype=torch.int64))


def test_accepts_states_and_explain_agree_with_the_automaton():
    compiled = automata.compile(NAMED["S3 and resets"]())
    words = ["", "a", "abra", "sabbab"]
    assert compiled.accepts(words) == [compiled.dfa.accepts(word) for word in words]
    states = compiled.states(words)
    for word, row in zip(words, states.tolist(), strict=True):
        expected = compiled.dfa.run(np.array([compiled.dfa.encode(word)], np.int64).reshape(1, -1))[0].tolist()
        assert row == expected + [-1] * (6 - len(word))
    trace = compiled.explain("abr")
    assert [step.state for step in trace.steps] == [step.model_state for step in trace.steps] == states[2, :3].tolist()
    assert trace.steps[0].chain == ((0, 1, 2), (1,))
    assert set(trace.steps[0].memories) == {"c1.0.0", "c1.0.1", "y1.0"}
    assert "accept" in str(trace)
    assert str(compiled.explain("")).startswith("letter")
    with pytest.raises(ValueError, match=r"word\[1\]"):
        compiled.explain("ax")


def test_compiling_without_minimising_keeps_equivalent_states():
    dfa = automata.from_maps({"a": (1, 2, 0)}, accept=(0, 1, 2))
    assert automata.compile(dfa).dfa.size == 1
    unminimised = automata.compile(dfa, minimise=False)
    assert unminimised.states(["aaaa"]).tolist() == [[1, 2, 0, 1]]


def test_compiled_model_works_like_other_models(tmp_path):
    """It can be saved, loaded, and run in steps, in chunks and with padding."""
    compiled = automata.compile(NAMED["flip-flop and parity"]())
    compiled.save(tmp_path)
    model = SequenceModel.from_pretrained(tmp_path)
    words = make_random_words(compiled.dfa, 3, 12)
    whole = compiled.model(words)
    torch.testing.assert_close(model(words), whole, rtol=0, atol=0)
    state, steps = model.initial_state(3), []
    for t in range(12):
        y, state = model.step(words[:, t], state)
        steps.append(y.detach())
    assert (torch.stack(steps, 1).argmax(-1) == whole.argmax(-1)).all()
    valid = torch.arange(12) >= torch.tensor([[0], [3], [11]])
    padded = model(torch.where(valid, words, 0), valid=valid)
    unpadded = model(words[1:2, 3:])
    assert (padded[1:2, 3:].argmax(-1) == unpadded.argmax(-1)).all()
    assert torch.cat([logits for logits, _ in compiled.run(words, chunk_length=5)], 1).argmax(-1).equal(whole.argmax(-1))
    loaded = automata.load(tmp_path)
    assert loaded.dfa == compiled.dfa
    assert loaded.verify().is_certified
    assert set(loaded.state_dict()) == set(model.state_dict())
    (tmp_path / "automaton.json").write_text(json.dumps({"alphabet": ["a"]}))
    with pytest.raises(automata.AutomataError, match=r"automaton\.json is damaged"):
        automata.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"automaton\.json does not exist"):
        automata.load(tmp_path / "nothing")


def test_compiling_uses_no_random_numbers():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    automata.compile(automata.mod(2))
    torch.testing.assert_close(torch.rand(2), expected)


def test_compiling_a_non_solvable_automaton_raises():
    for name in ("A5", "S5", "S5 and a reset"):
        with pytest.raises(NonSolvableError, match="contains a perfect group of order 60") as caught:
            automata.compile(NAMED[name]())
        assert caught.value.report.verdict == "non-solvable"
        assert "A5" in str(caught.value) or "S5" in str(caught.value)


def test_limits_and_invalid_settings_raise():
    with pytest.raises(LimitExceeded, match=r"at most 100 parameters are allowed, got at least \d+") as caught:
        automata.compile(automata.mod(2), max_params=100)
    assert (caught.value.what, caught.value.limit) == ("parameters", 100)
    with pytest.raises(ValueError, match=r"dtype.* one of float32, float64"):
        automata.compile(automata.mod(2), dtype="float16")
    with pytest.raises(ValueError, match=r"phase.* one of grid, float"):
        automata.compile(automata.mod(2), phase="wrapped")
    with pytest.raises(ValueError, match=r"backend.* one of auto, "):
        automata.compile(automata.mod(2), backend="cuda")
    with pytest.raises(ValueError, match=r"layout.* one of minimal, am, ma"):
        automata.model_size(automata.mod(2), layout="mm")
    with pytest.raises(ValueError, match=r"series.* one of abelian, prime"):
        automata.model_size(automata.mod(2), series="long")


@pytest.mark.parametrize("name", ["S3", "flip-flop and parity", "(ab)*"])
def test_changed_weight_is_not_certified_if_answers_change(name):
    """One weight of each parameter is changed by a large amount; more than ten changes are detected."""
    generator = torch.Generator().manual_seed(0)
    n_rejected = 0
    for index, parameter in enumerate(dict(automata.compile(NAMED[name]()).model.named_parameters())):
        compiled = automata.compile(NAMED[name]())
        value = dict(compiled.model.named_parameters())[parameter]
        if not value.numel():
            continue
        with torch.no_grad():
            index_of_weight = int(torch.randint(value.numel(), (), generator=generator))
            value.view(-1)[index_of_weight] += 3.0 if index % 2 else -40.0
        changes_answers = count_errors(compiled, all_words(compiled.dfa, 6)) > 0
        is_certified = compiled.verify().is_certified
        n_rejected += not is_certified
        assert not (changes_answers and is_certified), parameter
    assert n_rejected > 10


def test_wrong_head_is_not_certified():
    compiled = automata.compile(automata.mod(2))
    with torch.no_grad():
        compiled.model.head.weight.copy_(compiled.model.head.weight.flip(0))
    assert compiled.verify().problems == ("head.weight has weights where none belong", "the head does not tell the states apart")


def test_certificate_is_printed_as_text():
    certificate = automata.compile(automata.mod(2), backend="eager").verify()
    assert str(certificate).startswith("certified for words of every length in float32 on the backend eager")
    assert automata.compile(automata.mod(2)).verify().backend == ("eager" if native_cpu_missing() else "cpu")
    assert certificate.margin == pytest.approx(0.25, abs=1e-5)
    assert certificate.error < 1e-5
    assert str(replace(certificate, is_certified=False, problems=("a", "b"))) == "not certified: a; b"


def test_all_words_lists_every_word_of_a_length():
    words = all_words(automata.mod(2), 3)
    assert words.tolist() == [list(word) for word in itertools.product(range(2), repeat=3)]
