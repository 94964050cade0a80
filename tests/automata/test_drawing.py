"""Figures, graphs and scores of a compiled automaton, and the command `longscan automata`."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.patches import Circle, FancyArrowPatch

from longscan import automata
from longscan.automata.drawing import draw_model, write_dot
from longscan.automata.languages import NAMED
from longscan.automata.scoring import random_words, score, scores
from longscan.cli import main


@pytest.fixture(scope="module")
def hybrid() -> automata.CompiledAutomaton:
    return automata.compile(NAMED["S3 and resets"]())


def read_png_size(path: Path) -> tuple[int, int]:
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height


def test_figure_shows_the_states_and_the_residual_stream():
    compiled = automata.compile(NAMED["Dyck depth 3"]())
    figure = draw_model(compiled, "(()")
    states, stream = figure.axes[:2]
    edges = compiled.dfa.edges()
    texts = [text.get_text() for text in states.texts]
    assert texts == [str(state) for state in range(compiled.dfa.size)] + [",".join(letters) for letters in edges.values()]
    assert sum(isinstance(patch, FancyArrowPatch) for patch in states.patches) == len(edges)
    assert sum(isinstance(patch, Circle) for patch in states.patches) == compiled.dfa.size + len(compiled.dfa.accept)
    names = [text.get_text() for text in stream.get_yticklabels()]
    assert {"letter", "P1", "P1 before", "x1", "constant"} <= set(names)
    assert [text.get_text() for text in stream.get_xticklabels()] == ["(", "(", ")"]
    np.testing.assert_array_equal(stream.images[0].get_array(), compiled.explain("(()").stream.T)


def test_figure_of_many_states_has_no_graph(tmp_path):
    large = automata.compile(automata.mod(50))
    assert [text.get_text() for text in draw_model(large, "01").axes[0].texts] == ["50 states: too many to draw"]
    assert "{50 states} > {3}" in str(large.explain("0111"))
    assert '  49 -> 0 [label="1"];' in write_dot(large, tmp_path / "large.dot").read_text()


def test_dot_files_have_all_states_edges_and_operations(hybrid, tmp_path):
    automaton = write_dot(automata.mod(2), tmp_path / "mod.dot").read_text().splitlines()
    assert automaton == [
        "digraph {", "  rankdir=LR;", '  start [shape=none, label=""];', "  start -> 0;",
        "  0 [shape=doublecircle];", "  1 [shape=circle];",
        '  0 -> 0 [label="0"];', '  0 -> 1 [label="1"];', '  1 -> 1 [label="0"];', '  1 -> 0 [label="1"];', "}",
    ]  # fmt: skip
    quoted = automata.DFA(('"', "\\"), ((0, 0),), 0, frozenset())
    assert r'  0 -> 0 [label="\",\\"];' in write_dot(quoted, tmp_path / "quoted.dot").read_text()
    lines = write_dot(hybrid, tmp_path / "hybrid.dot").read_text().splitlines()
    assert sum(line.startswith("  subgraph cluster_") for line in lines) == len(hybrid.spec) == 4
    assert r'    "c1.0.1" [label="c1.0.1\ncounter, 3 values, 2 rows"];' in lines
    assert '  "c1.0.0" -> "c1.0.1";' in lines
    assert sum("->" in line and '"' in line and "label" not in line for line in lines) == sum(
        len(op.wires) for op in hybrid.program.ops
    )
    delayed = write_dot(automata.compile(NAMED["Dyck depth 3"]()), tmp_path / "dyck.dot").read_text()
    assert '  "P1" -> "x1" [style=dashed];' in delayed


def test_scores_of_a_right_and_a_wrong_head(hybrid):
    rows = scores(hybrid, lengths=(30,), count=10)
    assert [row.words for row in rows] == ["all up to length 7", "10 of length 30"]
    assert all(row.accuracy == row.states == 1 for row in rows)
    broken = automata.compile(automata.mod(2))
    with torch.no_grad():
        broken.model.head.weight.copy_(broken.model.head.weight.flip(0))
    result = score(broken, random_words(broken, 20, 50))
    assert (result.accuracy, result.states) == (0, 1)
    assert 0.5 <= result.constant < 0.6


def test_random_words_avoid_sinks_on_request():
    compiled = automata.compile(automata.from_regex("(ab)*"))
    (sink,) = compiled.dfa.sinks
    assert sink in compiled.dfa.run(random_words(compiled, 1, 50).numpy())
    words = random_words(compiled, 5, 50, avoid_sinks=True)
    assert sink not in compiled.dfa.run(words.numpy())
    rows = scores(compiled, lengths=(30,), count=3)
    assert [row.words for row in rows[1:]] == ["3 of length 30", "3 of length 30, out of sinks"]
    dyck = automata.compile(automata.dyck(2))
    walks = dyck.dfa.run(random_words(dyck, 20, 50, avoid_sinks=True).numpy())
    assert set(walks.flatten().tolist()) == set(range(4)) - set(dyck.dfa.sinks)
    everything = automata.compile(automata.from_regex(".*", "ab"))
    assert random_words(everything, 3, 20, avoid_sinks=True).unique().tolist() == [0, 1]


def test_command_compiles_saves_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/automaton.png").write_text("former")
    with open("model/automaton.png") as former:
        assert main(["automata", "(ab)*", "--save", "model", "--word", "abab"]) == 0
        assert former.read() == "former", "a new file takes its place, so that no reader sees an incomplete picture"
    assert Path("model/automaton.png").read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr().out
    expected = ("star-free", "blocks mmmm, d_model 14, 3,206 parameters", "certified for words of every length", "automaton.dot")
    for text in (*expected, "a       1      reject"):
        assert text in output
    file_names = {path.name for path in Path("model").iterdir()}
    assert file_names >= {"model.safetensors", "config.json", "automaton.png", "automaton.dot"}
    assert json.loads(Path("model/automaton.json").read_text())["alphabet"] == ["a", "b"]
    assert main(["eval", "model"]) == 0
    assert "1.000000" in capsys.readouterr().out
    assert main(["automata", "--named", "mod 4", "--picture", "p.png", "--series", "prime", "--phase", "float"]) == 0
    assert "certified for words of up to" in capsys.readouterr().out
    assert read_png_size(Path("p.png"))[0] > 500


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["automata"], "exactly one of a regular expression and `--named` must be given, got neither"),
        (["automata", "a", "--named", "S3"], "exactly one"),
        (["automata", "ab", "--picture", "p.xyz"], "`--picture` must be a file whose name ends in one of "),
        (["automata", "--named", "S3", "--alphabet", "ab"], "`--alphabet` must be left out with --named"),
        (["automata", "(ab"], "opens a '(' that no ')' closes at position 1"),
        (["automata", "--named", "A5"], "contains a perfect group of order 60"),
        (["automata", "--named", "S9"], "`--named` must be one of parity"),
        (["automata", "--named", "mod 0"], "`--named` must be one of parity"),
        (["automata", "(`name`"], "got '(`name`', which opens a '('"),
        (["automata", "ab", "--alphabet", "a"], "`--alphabet` must be letters with b of the pattern"),
        (["automata", "ab", "--length", "0"], "`--length` must be a whole number of at least 1"),
        (["automata", "ab", "--save", __file__], "`--save` must be a folder, got "),
        (["automata", "ab", "--series", "long"], "one of abelian, prime"),
        (["automata", "ab", "--word", "abc"], "word[2]"),
        (["automata", "ab", "--word", ""], "a word of 1 to 300 letters"),
        (["automata", "ab", "--word", "a" * 301], "a word of 1 to 300 letters"),
        (["automata", "ab", "--dtype", "half"], "one of float32, float64"),
        (["automata", "ab", "--backend", "gpu"], "`--backend` must be one of auto, reference, eager, cpu, triton"),
        (
            ["automata", "--named", "mod 5", "--phase", "float", "--length", "1000000000"],
            "up to which answers are certified",
        ),
    ],
)
def test_wrong_arguments_give_an_error_of_one_line(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*argv, "--save", "model"] if "--word" in argv else argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_damaged_model_gives_an_error_of_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    automata.compile(automata.mod(2)).save("model")
    saved = Path("model/automaton.json").read_text()
    without_checksum = json.loads(saved)
    assert without_checksum.pop("crc32")
    other = without_checksum | {"alphabet": ["0", "1", "2"], "delta": [[0, 1, 0], [1, 0, 1]]}
    for text, message in (
        ("{", "damaged"),
        ('{"alphabet": ["a"]}', "automaton.json is damaged (KeyError('delta'))"),
        ("\xff", "automaton.json is damaged (UnicodeDecodeError"),
        ("[" * 100_000, "automaton.json is damaged (RecursionError"),
        (json.dumps(without_checksum | {"start": 5}), "a state from 0 to"),
        (json.dumps(json.loads(saved) | {"accept": [0, 1]}), "its checksum is that of another content"),
        (json.dumps(other), "must hold the model of the automaton in automaton.json, got another model"),
    ):
        Path("model/automaton.json").write_text(text, encoding="latin-1")
        assert main(["eval", "model"]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    Path("model/automaton.json").write_text(json.dumps(without_checksum))
    assert main(["eval", "model"]) == 0, "a file of a version before the checksum"
    Path("model/automaton.json").write_text(saved)
    Path("model/model.safetensors").unlink()
    assert main(["eval", "model"]) == 2
    assert "model.safetensors does not exist" in capsys.readouterr().err


def test_model_is_not_saved_for_an_invalid_word(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["automata", "ab", "--word", "abc", "--save", "model"]) == 2
    assert not Path("model").exists()


def test_eval_of_a_split_of_a_compiled_model_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    automata.compile(automata.mod(2)).save("model")
    assert main(["eval", "model", "--split", "train"]) == 2
    assert "which has neither" in capsys.readouterr().err
