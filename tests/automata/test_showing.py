"""Pictures, the page that steps a word, scores, and the command."""

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from longscan import automata
from longscan.automata import pictures
from longscan.automata.diagrams import arrows, circle, state_radius
from longscan.automata.languages import NAMED
from longscan.automata.monoid import transition_monoid
from longscan.automata.page import stepping_figure, write_page
from longscan.automata.scoring import random_words, score, scores
from longscan.cli import main


@pytest.fixture(scope="module")
def hybrid() -> automata.Compiled:
    return automata.compile(NAMED["S3 and resets"]())


def size_of(path: Path) -> tuple[int, int]:
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height


def test_all_pictures_are_drawn(hybrid, tmp_path):
    written = pictures.write_pictures(hybrid, tmp_path, "abrsab")
    names = ["states", "skeleton", "wiring", "phases", "flip_flops", "residual", "egg_box"]
    assert [path.name for path in written] == [f"{name}.png" for name in names]
    assert all(min(size_of(path)) > 150 for path in written)


def test_pictures_show_what_the_model_holds(hybrid):
    word = "abrsab"
    trace = hybrid.explain(word)
    portrait = pictures.phase_portraits(hybrid, word)
    assert portrait is not None
    titles = [axes.get_title() for axes in portrait.axes]
    assert titles[0].startswith("c1.0.0, modulo 2; radius off by")
    drawn = portrait.axes[1].collections[-1].get_offsets()
    expected = [2 * np.pi * step.memories["c1.0.1"] / 3 for step in trace.steps]
    np.testing.assert_allclose(drawn, np.stack([np.cos(expected), np.sin(expected)], 1), atol=1e-5)
    traces = pictures.flip_flop_traces(hybrid, word)
    assert traces is not None
    shown = np.asarray(traces.axes[0].images[0].get_array())
    np.testing.assert_array_equal(shown.argmax(0), [step.memories["y1.0"] for step in trace.steps])
    texts = {text.get_text().split("\n")[0] for text in pictures.wiring(hybrid).axes[0].texts}
    assert {"letter", "c1.0.0", "c1.0.1", "y1.0", "P0"} <= texts


def test_no_wire_is_drawn_behind_a_box():
    for name in ("S3 and resets", "Dyck depth 3", "S4"):
        drawn = pictures.wiring(automata.compile(NAMED[name]())).axes[0]
        centres = [
            np.array(patch.get_bbox().get_points()).mean(0) for patch in drawn.patches if isinstance(patch, FancyBboxPatch)
        ]
        wires = [patch for patch in drawn.patches if isinstance(patch, FancyArrowPatch)]
        assert len(wires) > len(centres) > 2
        for wire in wires:
            points = np.concatenate(wire.get_path().to_polygons(closed_only=False))
            for x, y in centres:
                assert not ((abs(points[:, 0] - x) < 0.33) & (abs(points[:, 1] - y) < 0.29)).any(), name


def test_what_a_model_lacks_is_not_drawn():
    group, star_free = automata.compile(automata.mod(3)), automata.compile(automata.from_regex("(ab)*"))
    assert pictures.flip_flop_traces(group, "01") is None
    assert pictures.phase_portraits(star_free, "ab") is None
    assert pictures.egg_box(transition_monoid(automata.dyck(8))) is not None
    large = automata.acting({"a": (1, 0, 2, 3, 4), "b": (1, 2, 3, 4, 0), "c": (0, 0, 2, 3, 4)})
    assert pictures.egg_box(transition_monoid(large)) is None


def test_egg_boxes_list_the_elements():
    figure = pictures.egg_box(transition_monoid(automata.from_regex("(ab)*")))
    assert figure is not None
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"a", "b", "ab*", "ba*", "1*", "aa*", "rank 2, group 1"} <= set(texts)


def test_state_diagrams_keep_apart_what_is_different():
    for dfa in (automata.mod(5), NAMED["S3 and resets"](), automata.from_regex("(a|b)*")):
        places, radius = circle(dfa.size), state_radius(dfa.size)
        if dfa.size > 1:
            gaps = np.linalg.norm(places[:, None] - places[None], axis=-1)[~np.eye(dfa.size, dtype=bool)]
            assert gaps.min() > 2 * radius
        found = arrows(dfa)
        assert {(arrow.source, arrow.target) for arrow in found} == set(dfa.edges())
        for arrow in found:
            assert np.linalg.norm(arrow.curve[-1] - places[arrow.target]) < 3 * radius
        spots = np.array([arrow.at for arrow in found])
        if len(spots) > 1:
            apart = np.linalg.norm(spots[:, None] - spots[None], axis=-1)[~np.eye(len(spots), dtype=bool)]
            assert apart.min() > 0.05
    for name in ("cycle navigation mod 5", "S3", "S3 and resets", "Dyck depth 3"):  # letters are nearest to their own edge
        found = arrows(NAMED[name]().minimise())
        away = np.array([[np.linalg.norm(edge.curve - arrow.at, axis=1).min() for edge in found] for arrow in found])
        assert (away.argmin(1) == np.arange(len(found))).all(), name
    for count in range(3, 8):  # no edge begins where another ends: the two would read as one with a head at each end
        full = automata.DFA(tuple("abcdefgh"[:count]), tuple(tuple(range(count)) for _ in range(count)), 0, frozenset())
        between = [arrow for arrow in arrows(full) if arrow.source != arrow.target]
        begins, ends = (np.array([arrow.curve[at] for arrow in between]) for at in (0, -1))
        assert np.linalg.norm(begins[:, None] - ends[None], axis=-1).min() > 0.2 * state_radius(count), count
    crowded = pictures.state_diagram(automata.mod(50))
    assert [text.get_text() for text in crowded.axes[0].texts] == ["50 states: too many to draw"]


def test_the_page_stands_alone_and_has_a_frame_for_every_letter(hybrid, tmp_path):
    word = "abrs"
    figure = stepping_figure(hybrid, word)
    assert [frame.name for frame in figure.frames] == ["0", "1", "2", "3", "4"]
    states = [step.state for step in hybrid.explain(word).steps]
    for frame, state in zip(figure.frames[1:], states, strict=True):
        colours = frame.data[0].marker.color
        assert colours[state] == pictures.ORANGE
        assert colours.count(pictures.ORANGE) == 1
    text = write_page(hybrid, tmp_path / "page.html", word).read_text("utf-8")
    assert "certified for words of every length" in text
    assert not re.search(r"<(?:script|link)[^>]*(?:src|href)=[\"']https?:", text)
    for wrong in ("", "a" * 301):
        with pytest.raises(ValueError, match=f"word: got {len(wrong)} letters, expected 1 to 300"):
            write_page(hybrid, tmp_path / "page.html", wrong)


def test_what_is_too_large_to_draw_is_named():
    large = automata.compile(automata.mod(50))
    figure = stepping_figure(large, "0111")
    assert figure.frames[4].data[0].text == ("<br><br><br><br>state 3 of 50; model: 3",)
    assert "{50 states} > {3}" in str(large.explain("0111"))
    texts = [text.get_text() for text in pictures.skeleton_diagram(large.report).axes[0].texts]
    assert texts[:2] == ["50 states\n50 tiles\ngroup C50", "single states, 50 of them"]


def test_skeletons_show_levels_and_groups(hybrid):
    report = automata.analyse(NAMED["S5 and a reset"]())
    texts = [text.get_text() for text in pictures.skeleton_diagram(report).axes[0].texts]
    assert texts == ["{0,1,2,3,4}\n5 tiles\ngroup S5, not solvable", "single states, 5 of them", "level 0", "level 1"]
    texts = [text.get_text() for text in pictures.skeleton_diagram(hybrid.report).axes[0].texts]
    assert texts[0] == "{0,1,2}\n3 tiles\ngroup S3"


def test_the_residual_stream_is_drawn_by_fields():
    compiled = automata.compile(NAMED["Dyck depth 3"]())
    drawn = pictures.residual_heat_map(compiled, "(()").axes[0]
    names = [text.get_text() for text in drawn.get_yticklabels()]
    assert names[0] == "letter"
    assert names[-1] == "constant"
    assert {"P1", "P1 before", "x1"} <= set(names)
    np.testing.assert_array_equal(drawn.images[0].get_array(), compiled.explain("(()").stream.T)


def test_scores(hybrid):
    rows = scores(hybrid, lengths=(30,), count=10)
    assert [row.words for row in rows] == ["all up to length 7", "10 of length 30"]
    assert all(row.accuracy == row.states == 1 for row in rows)
    broken = automata.compile(automata.mod(2))
    with torch.no_grad():
        broken.model.head.weight.copy_(broken.model.head.weight.flip(0))
    found = score(broken, random_words(broken, 20, 50))
    assert (found.accuracy, found.states) == (0, 1)
    assert 0.5 <= found.constant < 0.6


def test_words_that_keep_out_of_sinks():
    compiled = automata.compile(automata.from_regex("(ab)*"))
    (sink,) = compiled.dfa.sinks
    assert sink in compiled.dfa.run(random_words(compiled, 1, 50).numpy())
    words = random_words(compiled, 5, 50, shun_sinks=True)
    assert sink not in compiled.dfa.run(words.numpy())
    rows = scores(compiled, lengths=(30,), count=3)
    assert [row.words for row in rows[1:]] == ["3 of length 30", "3 of length 30, out of sinks"]
    dyck = automata.compile(automata.dyck(2))
    walks = dyck.dfa.run(random_words(dyck, 20, 50, shun_sinks=True).numpy())
    assert set(walks.flatten().tolist()) == set(range(4)) - set(dyck.dfa.sinks)
    everything = automata.compile(automata.from_regex(".*", "ab"))
    assert random_words(everything, 3, 20, shun_sinks=True).unique().tolist() == [0, 1]


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["automata", "(ab)*", "--save", "model", "--word", "abab"]) == 0
    said = capsys.readouterr().out
    for words in ("star-free", "blocks mmmm, d_model 14, 3,206 parameters", "certified for words of every length", "page.html"):
        assert words in said
    assert {path.name for path in Path("model").iterdir()} >= {"model.safetensors", "config.json", "automaton.png", "page.html"}
    assert json.loads(Path("model/automaton.json").read_text())["alphabet"] == ["a", "b"]
    assert main(["eval", "model"]) == 0
    assert "1.000000" in capsys.readouterr().out
    assert main(["automata", "--named", "mod 4", "--picture", "p.png", "--series", "prime", "--phase", "float"]) == 0
    assert "certified for words of up to" in capsys.readouterr().out
    assert size_of(Path("p.png"))[0] > 500


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["automata"], "needed exactly one of a regular expression and --named"),
        (["automata", "a", "--named", "S3"], "needed exactly one"),
        (["automata", "(ab"], "opens a '(' that no ')' closes at position 1"),
        (["automata", "--named", "A5"], "holds a perfect group of order 60"),
        (["automata", "--named", "S9"], "name: got 'S9'"),
        (["automata", "ab", "--alphabet", "a"], "the pattern uses b"),
        (["automata", "ab", "--series", "long"], "series: got 'long'"),
        (["automata", "ab", "--word", "abc"], "word: got 'c' at position 3"),
        (["automata", "ab", "--dtype", "half"], "dtype: got 'half'"),
        (["automata", "ab", "--backend", "gpu"], "backend: got 'gpu'"),
        (["automata", "--named", "mod 5", "--phase", "float", "--length", "1000000000"], "certified up to"),
    ],
)
def test_mistakes_are_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--save", "model"] if "--word" in words else words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_damaged_model_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    automata.compile(automata.mod(2)).save("model")
    saved = Path("model/automaton.json").read_text()
    other = json.loads(saved) | {"alphabet": ["0", "1", "2"], "delta": [[0, 1, 0], [1, 0, 1]]}
    for text, message in (
        ("{", "damaged"),
        ('{"alphabet": ["a"]}', "damaged (KeyError('delta'))"),
        (json.dumps(json.loads(saved) | {"start": 5}), "start: got 5"),
        (json.dumps(other), "the model is not of the automaton in automaton.json"),
    ):
        Path("model/automaton.json").write_text(text)
        assert main(["eval", "model"]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    Path("model/automaton.json").write_text(saved)
    Path("model/model.safetensors").unlink()
    assert main(["eval", "model"]) == 2
    assert "model.safetensors: no such file" in capsys.readouterr().err


def test_nothing_is_saved_beside_a_wrong_word(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["automata", "ab", "--word", "abc", "--save", "model"]) == 2
    assert not Path("model").exists()


def test_a_compiled_model_has_no_splits(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    automata.compile(automata.mod(2)).save("model")
    assert main(["eval", "model", "--split", "train"]) == 2
    assert "has no splits" in capsys.readouterr().err
