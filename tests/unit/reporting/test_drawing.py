import re
from xml.etree import ElementTree

import pytest

from understudy.errors import InputError
from understudy.reporting.drawing import Drawing, Mark, dots, draw, inline, percent_axis, say
from understudy.reporting.text_formatting import NARROW_SPACE


def one(key="k", name="Synthetic", title="T", alt="A"):
    return draw(
        key,
        title=title,
        alt=alt,
        height=120,
        paint=lambda figure: dots(
            figure.subplots(),
            [Mark(name, 0.5, "#0a0b0c", "o", (0.4, 0.6)), Mark("Real", 0.7, "#0d0e0f", "s")],
            low=0,
            high=1,
        ),
    )


def test_the_same_numbers_give_the_same_bytes():
    assert one() == one()


def test_it_is_well_formed_and_named_for_readers():
    root = ElementTree.fromstring(one(title="Share", alt="Half of it").svg)
    assert root.tag == "svg"
    assert root.attrib["role"] == "img"
    by_id = {element.get("id"): element for element in root.iter() if element.get("id")}
    spoken = [by_id[name].text for name in root.attrib["aria-labelledby"].split()]
    assert spoken == ["Share", "Half of it"]


def test_it_scales_and_fetches_nothing():
    svg = one().svg
    root = ElementTree.fromstring(svg)
    assert root.attrib["viewBox"] == "0 0 400 120"
    assert "width" not in root.attrib
    assert "http" not in svg
    assert "<style" not in svg
    assert "<script" not in svg


def test_every_colour_is_a_variable_of_the_page():
    svg = one().svg
    assert set(re.findall(r"var\(--(\w+)\)", svg)) >= {"ink", "muted", "grid", "synthetic", "real", "paper"}
    assert re.findall(r"#[0-9a-fA-F]{6}\b", svg) == []


def test_ids_of_two_figures_never_meet_and_every_reference_resolves():
    found = []
    for key in ("one", "two"):
        svg = one(key).svg
        ids = re.findall(r'\bid="([^"]+)"', svg)
        references = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)
        assert len(ids) == len(set(ids))
        assert references
        assert {a or b for a, b in references} <= set(ids)
        found.append(set(ids))
    assert not found[0] & found[1]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "$\\frac{x}{", 'a" onload="x', "&amp;", "100$ or 200$"])
def test_labels_are_taken_literally(name):
    drawing = one(name=name, title=name, alt=name)
    root = ElementTree.fromstring(drawing.svg)
    texts = [element.text for element in root.iter("text")]
    assert name in texts
    assert {element.tag for element in root.iter()} <= {
        "svg",
        "title",
        "desc",
        "defs",
        "g",
        "path",
        "use",
        "text",
        "clipPath",
        "rect",
    }
    assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)


def test_small_shares_keep_a_decimal_on_the_axis():
    def paint(figure):
        axes = figure.subplots()
        axes.plot([0, 0.01])
        percent_axis(axes.yaxis)

    assert f"0.5{NARROW_SPACE}%" in draw("k", title="", alt="", height=100, paint=paint).svg


def test_marks_in_words():
    text = say([Mark("A", 0.5, "", "o", (0.4, 0.6)), Mark("B", 0.25, "", "o")]).replace(NARROW_SPACE, " ")
    assert text == "A 50.0 % (interval 40.0 % to 60.0 %), B 25.0 %"


def test_drawing_leaves_matplotlibs_settings_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    one()
    assert dict(matplotlib.rcParams) == before


def test_what_was_drawn_may_stand_in_a_page():
    drawing = one()
    assert ElementTree.canonicalize(str(inline(drawing))) == ElementTree.canonicalize(drawing.svg)


@pytest.mark.parametrize(
    "svg",
    [
        "<svg><script>alert(1)</script></svg>",
        "<svg><g onclick='alert(1)'/></svg>",
        "<svg><use href='https://example.org/x.svg#a'/></svg>",
        "<svg><image href='#a'/></svg>",
        "<svg><style>*{}</style></svg>",
        "<svg><path style='fill: url(https://example.org/x)'/></svg>",
        "<svg><foreignObject/></svg>",
        "<div/>",
        "<svg>",
        "",
    ],
)
def test_nothing_else_may(svg):
    with pytest.raises(InputError, match="figure 'k'"):
        inline(Drawing(key="k", title="", alt="", svg=svg))
