"""The hook of the site marks where long names in tables may break and which options may not, and changes nothing else."""

import importlib.util

import pytest


@pytest.fixture(scope="module")
def hook(request):
    """Return the module of MkDocs' hook."""
    pytest.importorskip("latex2mathml")
    path = request.config.rootpath / "docs/assets/mathml.py"
    spec = importlib.util.spec_from_file_location("mathml", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "<td>aussm/table1/modular_arithmetic_brackets/am</td>",
            "<td>aussm/<wbr>table1/<wbr>modular_<wbr>arithmetic_<wbr>brackets/<wbr>am</td>",
        ),
        ('<td><a href="../a_page/with_a_long/address.html">short_name</a></td>', None),
        ("<p>aussm/table1/modular_arithmetic_brackets/am</p>", None),
        ("<td>100,000, of 100,000</td>", None),
    ],
)
def test_only_long_names_in_cells_may_break(hook, content, expected):
    assert hook.on_page_content(content) == (content if expected is None else expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<p><code>--out</code></p>", '<p><code class="option">--out</code></p>'),
        ("<code>longscan train a.csv --id b</code>", '<code>longscan train a.csv <span class="option">--id</span> b</code>'),
        (
            '<pre><code><a name="--x"></a>run<span class="w"> </span>--model.d_model<span class="w"> </span>8</code></pre>',
            '<pre><code><a name="--x"></a>run<span class="w"> </span><span class="option">--model.d_model</span>'
            '<span class="w"> </span>8</code></pre>',
        ),
        ("<p>words --not code</p>", None),
        ("<code>a--b</code>", None),
    ],
)
def test_options_in_code_do_not_break(hook, content, expected):
    assert hook.on_page_content(content) == (content if expected is None else expected)
