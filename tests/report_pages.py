"""What the tests of report pages share: a parser, and a look at a page in a browser."""

import html
import json
import re
from functools import partial
from html.parser import HTMLParser

import numpy as np
from matplotlib.image import imread

from understudy.reporting.report import About

ABOUT = About(
    made="500 labelled texts in two classes, by conditional generation",
    label_names=("negative", "positive"),
    created="2026-01-02 03:04 UTC",
    facts={"Run": "4f1c9d0a"},
)


class Outline(HTMLParser):
    """Tags, attributes and visible text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.texts, self.headings, self._open = [], [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self._open.append(tag)

    def handle_endtag(self, tag):
        self._open.remove(tag) if tag in self._open else None

    def handle_data(self, data):
        if "style" not in self._open:
            self.texts.append(data)
            if self._open and self._open[-1] in ("h1", "h2"):
                self.headings.append(data)


MEASURE = """<script>
const page = document.documentElement.scrollWidth - document.documentElement.clientWidth;
const wide = [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll') && !e.closest('svg') &&
  !e.classList.contains('hidden') && e.getBoundingClientRect().right > innerWidth + 0.5);
const sizes = [...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height);
const cut = [...document.querySelectorAll('svg')].filter(s => { const box = s.getBoundingClientRect();
  return [...s.querySelectorAll('text')].some(t => { const r = t.getBoundingClientRect();
    return r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1; }); });
document.body.setAttribute('data-found', JSON.stringify({page, inner: innerWidth,
  wide: wide.map(e => e.className || e.tagName), smallest: Math.min(...sizes),
  cut: cut.map(s => s.getAttribute('aria-labelledby')),
  drawings: [...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width)}));
</script></body>"""


def assert_nothing_overflows(page, folder, browse, *, width, figures):
    """Measure the layout of a page of so many pixels and figures."""
    # In a frame of the asked width: headless windows have a least width of their own.
    copy = folder / "copy.html"
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    opened = page.replace("<details>", "<details open>")
    assert policy.search(opened)
    copy.write_text(policy.sub("", opened).replace("</body>", MEASURE))
    frame = folder / "frame.html"
    frame.write_text(
        f"<body style='margin:0'><iframe src='copy.html' style='border:0;width:{width}px;height:14000px'></iframe>"
        "<script>onload = () => document.title = document.querySelector('iframe').contentDocument.body.dataset.found;"
        "</script>"
    )
    dom = browse(frame, "--allow-file-access-from-files", "--dump-dom", width=1400)
    found = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", dom, re.S).group(1)))
    assert found["inner"] == width
    assert found["page"] <= 0
    assert found["wide"] == []
    assert found["cut"] == []
    assert len(found["drawings"]) == figures
    assert min(found["drawings"]) > 300
    assert found["smallest"] >= 9.5


def assert_every_figure_is_drawn(page, folder, browse, *, dark, figures):
    """Look at the pixels of every figure of a page, in the light or the dark colours."""
    cards = re.findall(r'<figure class="card">.*?</figure>', page, re.S)
    style = re.search(r"<style>.*?</style>", page, re.S).group(0)
    assert len(cards) == figures
    alone, shot = folder / "figures.html", folder / "figures.png"
    boxes = "".join(f"<div style='height:600px;overflow:hidden'>{figure}</div>" for figure in cards)
    alone.write_text(f"<!DOCTYPE html><meta charset='utf-8'>{style}<body>{boxes}")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    browse(alone, f"--screenshot={shot}", "--hide-scrollbars", *scheme, width=600, height=600 * figures)
    whole = np.round(imread(shot)[..., :3] * 255).astype(int)
    ground, accent = ((27, 30, 36), (84, 201, 190)) if dark else ((255, 255, 255), (11, 107, 102))
    for box in range(figures):
        drawn = whole[600 * box + 60 : 600 * (box + 1)]  # below the caption: axes, marks, text
        assert (np.abs(drawn - ground).sum(-1) == 0).sum() > 20_000, "the card lacks the ground of its colour scheme"
        assert (np.abs(drawn - accent).sum(-1) < 150).sum() > 100, "no synthetic mark is drawn"
        _, counts = np.unique(drawn @ (65536, 256, 1), return_counts=True)
        assert (counts > 3).sum() > 20, "the figure is all but blank"


# Each is called with a page, a folder, the fixture `browse` and the number of figures.
LOOKS = {
    "1280 pixels wide": partial(assert_nothing_overflows, width=1280),
    "420 pixels wide": partial(assert_nothing_overflows, width=420),
    "light": partial(assert_every_figure_is_drawn, dark=False),
    "dark": partial(assert_every_figure_is_drawn, dark=True),
}
