"""The page of a dump in a real browser, without network."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gqc.text import bytes_text

pytestmark = pytest.mark.xdist_group("browser")  # one process starts the browser that all tests here use

FLAGS = """
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1400,900
"""


@pytest.fixture(scope="session")
def dumped(dumped):
    """Dumps in which every primitive stands by itself."""
    return functools.partial(dumped, skip=("fuse_attention", "fuse_pointwise", "fuse_products"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator:
    """A headless Chromium that cannot reach any network; skips where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install 'gqc[dev]'")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver: apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")  # no network
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


class Page:
    """A dump in the browser."""

    def __init__(self, browser, path: Path) -> None:
        self.browser = browser
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get(path.as_uri())

    def all(self, selector: str) -> list:
        return self.browser.find_elements("css selector", selector)

    def one(self, selector: str):
        return self.browser.find_element("css selector", selector)

    def values(self, selector: str, attribute: str) -> list[str]:
        """An attribute of each element, in one question to the browser."""
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.getAttribute(arguments[1]))"
        return self.browser.execute_script(script, selector, attribute)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.browser.get_log("browser")]

    def box(self, name: str):
        return self.one(f'.node[data-name="{name}"]')

    def hover(self, element) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).move_to_element(element).perform()

    def rest(self) -> None:
        """Move the pointer off the drawing."""
        self.hover(self.one("header .title"))

    def edges(self, *classes: str) -> set[tuple[str, str]]:
        selector = "".join(f".{c}" for c in ("edge", *classes))
        return set(zip(*(self.values(selector, f"data-{end}") for end in ("from", "to")), strict=True))


BOTH = pytest.mark.parametrize("page", ["gat", "rgcn"], indirect=True)

SHOWN = """
return [...document.querySelectorAll("#tabs button")].filter(tab => {
  tab.click();
  return document.getElementById(tab.dataset.tab).checkVisibility();
}).map(tab => tab.dataset.tab);
"""


@pytest.fixture
def page(request, browser, dumped) -> Iterator[Page]:
    _, folder = dumped(getattr(request, "param", "gat"))
    shown = Page(browser, folder / "stage1" / "index.html")
    shown.stage = folder / "stage1"
    yield shown
    assert shown.errors() == []


@BOTH
def test_every_pass_can_be_clicked(page):
    names, tabs = page.values("#passes button", "data-pass"), page.values("#tabs button", "data-tab")
    assert len(tabs) > 3
    assert names == [f.stem[3:] for f in sorted(page.stage.glob("[0-9][0-9]_*.py"))][:-1]
    assert names[0] == "joint"
    drawn = set()
    for name in names:
        page.one(f'#passes button[data-pass="{name}"]').click()
        assert page.text("#details h3") == name
        assert page.one("#passes button.on").get_attribute("data-pass") == name
        boxes = set(page.values(".node", "data-name"))
        assert len(boxes) > 10
        drawn |= boxes
        assert page.browser.execute_script(SHOWN) == tabs
        page.one('#tabs button[data-tab="graph"]').click()
    assert any(name.endswith("_quantized") for name in drawn)


def test_the_address_follows_steps_of_any_speed(page):
    """Chromium refuses to change an address much more than 200 times in ten seconds, and says so in its log."""
    from selenium.webdriver.support.wait import WebDriverWait

    names = page.values("#passes button", "data-pass")
    button = f'#passes button[data-pass="{names[1]}"]'
    click = "for (let i = 0; i < 300; i++) document.querySelector(arguments[0]).click()"
    page.browser.execute_script(click, button)
    WebDriverWait(page.browser, 10).until(lambda browser: f"pass={names[1]}" in browser.current_url)
    page.browser.refresh()
    assert page.text("#details h3") == names[1]
    assert page.one("#passes button.on").get_attribute("data-pass") == names[1]


@BOTH
def test_saved_values_stand_between_the_halves(page):
    decided = json.loads((page.stage / "reasons.json").read_text())
    expected = {s["node"] for s in decided["saved"] if s["nbytes"] > 8}
    assert expected
    shown = {b.get_attribute("data-name"): b for b in page.all(".node.p-saved")}
    assert set(shown) == expected
    edges = page.edges("save") | page.edges("q") | page.edges("reuse")
    for name, box in shown.items():
        assert re.search(r"[\d.]+ (B|KiB|MiB)", box.get_attribute("textContent"))
        assert any(to == f"s:{name}" and source.startswith("f:") for source, to in edges), name
        assert any(source == f"s:{name}" and to.startswith("b:") for source, to in edges), name
    total = sum(s["nbytes"] for s in decided["saved"])
    page.one('#tabs button[data-tab="saved"]').click()
    assert bytes_text(total) in page.text("#saved h2")
    exact = decided["numbers"]["measure_saved"]["bytes saved for the backward in full precision"]
    assert f"In full precision it would be {bytes_text(exact)}" in page.text("#saved p")
    assert page.one('#passes button[data-pass="measure_saved"]').text.endswith(f"{bytes_text(exact)} in full precision")


CROSSED = """
const boxes = [...drawn.nodes.values()], crossed = [];
for (const e of drawn.edges) {
  const path = e.elements[0], length = path.getTotalLength();
  for (let at = 0; at <= length; at += 3) {
    const p = path.getPointAtLength(at);
    for (const b of boxes.filter(b => b.key !== e.from && b.key !== e.to))
      if (Math.abs(p.x - b.x) < b.w / 2 - 1 && p.y > b.y + 1 && p.y < b.y + b.h - 1)
        crossed.push(`${e.from} to ${e.to} over ${b.key}`);
  }
}
return [...new Set(crossed)];
"""


EVERY = pytest.mark.parametrize("page", ["gat", "rgcn", "pyg"], indirect=True)


@EVERY
def test_lines_cross_no_box(page):
    assert page.edges("save")
    assert page.browser.execute_script(CROSSED) == []


CLIPPED = """
return [...document.querySelectorAll(".node")].filter(node => {
  const box = node.querySelector("rect").getBBox();
  return [...node.querySelectorAll(":scope > text")].some(text => {
    const inside = text.getBBox();
    return inside.x < box.x || inside.x + inside.width > box.x + box.width;
  });
}).map(node => node.dataset.key);
"""


@EVERY
def test_text_stays_in_its_box(page):
    assert page.browser.execute_script(CLIPPED) == []


@BOTH
def test_the_header_tells_sizes_and_policy(page):
    assert "N = 60" in page.text("#sizes")
    policy = page.text("#policy")
    assert policy.startswith(
        "bits=8, rounding='stochastic', keep_output_layer=True, attention_logits='fp32', min_size=0"
    )
    assert policy.endswith("skip=['fuse_attention', 'fuse_pointwise', 'fuse_products']")


@pytest.mark.parametrize("page", ["pyg_max"], indirect=True)
def test_what_is_computed_once_a_graph_and_what_is_no_primitive(page):
    structure = json.loads((page.stage / "reasons.json").read_text())["structure"]
    told = page.text("#details")
    assert f"STRUCTURE: {len(structure)} TENSORS" in told
    for tensor in structure:
        assert tensor["line"] in told
    assert re.search(r"\d+ gathers and scatters of PyTorch\nconv", told)
    assert any("with structure" in box.get_attribute("textContent") for box in page.all(".node"))
    page.one("#all").click()
    assert {tensor["node"] for tensor in structure} <= set(page.values(".node", "data-name"))


@BOTH
def test_shared_copies_are_highlighted(page):
    decided = json.loads((page.stage / "reasons.json").read_text())
    shared = [d for d in decided["decisions"] if d["action"] == "shared"]
    assert shared
    reuse = page.edges("reuse")
    for decision in shared:
        readers = decision["reason"].split(" for ")[1].split(", ")
        names = {f"{decision['node']}_quantized", f"{decision['node']}_int8"}
        reading = {to[2:] for of, to in reuse if of[2:] in names and to[2:] not in names}
        assert reading >= set(readers)
        badge = page.one(f'.node[data-name="{decision["node"]}_quantized"] .badge')
        assert badge.get_attribute("textContent") == f"×{len(reading)}"  # with what the backward multiplies again


@BOTH
def test_hovering_tells_the_reason(page):
    decided = json.loads((page.stage / "reasons.json").read_text())
    kept = next(d for d in decided["decisions"] if d["action"] == "kept" and "output layer" in d["reason"])
    page.one("#fit").click()
    page.hover(page.box(kept["node"]))
    told = page.text("#details")
    assert kept["reason"] in told
    assert kept["line"] in told
    assert kept["module"] in told
    assert "kept in full precision" in told
    quantized = next(d for d in decided["decisions"] if d["action"] == "quantized")
    page.hover(page.box(f"{quantized['node']}_int8"))
    assert quantized["reason"] in page.text("#details")
    page.hover(page.one(".node.p-quantize"))
    name = page.text("#details h3")
    measured = {n["node"]: n for n in json.loads((page.stage / "errors.json").read_text())["nodes"]}
    told = page.text("#details")
    assert "= absmax / 127" in told
    assert float(re.search(r"scale\n([\d.e-]+) =", told)[1]) == pytest.approx(measured[name]["scale"], rel=0.01)
    assert float(re.search(r"absmax\n([\d.e-]+),", told)[1]) == pytest.approx(measured[name]["absmax"], rel=0.01)
    error, cosine = re.search(r"error\n([\d.e-]+) %[^\n]*\ncosine\n([\d.]+)", told).groups()
    assert float(error) == pytest.approx(100 * measured[name]["relative"], rel=0.01)
    assert float(cosine) == pytest.approx(measured[name]["cosine"], abs=1e-5)
    page.hover(page.box(f"{quantized['node']}_int8"))
    assert f"{measured[quantized['node'] + '_int8']['cosine']:.5f}" in page.text("#details")


@BOTH
def test_tables_tell_scales_and_errors(page):
    measured = {n["node"]: n for n in json.loads((page.stage / "errors.json").read_text())["nodes"]}
    assert measured
    page.one('#tabs button[data-tab="tensors"]').click()
    copies = [n for n in measured.values() if n["scale"] is not None]
    rows = [row.text for row in page.all("#tensors tbody tr")]
    assert len(rows) == len(copies)
    for row, copy in zip(rows, copies, strict=True):
        assert f"{copy['cosine']:.5f}" in row
    page.one('#tabs button[data-tab="errors"]').click()
    rows = [row.text for row in page.all("#errors tbody tr")]
    assert len(rows) == len(measured)
    shown = [float(row.split(" %")[0]) for row in rows]
    assert shown == sorted(shown, reverse=True)
    for parameter in ("conv1", "conv2"):
        assert any(f"gradient of {parameter}" in " ".join(row.split()) for row in rows)
    page.one('#tabs button[data-tab="decisions"]').click()
    for row in page.all("#decisions tbody tr"):
        assert re.search(r"[\d.e-]+ %", row.text)


@BOTH
def test_the_graph_in_short(page):
    decided = json.loads((page.stage / "reasons.json").read_text())
    measured = json.loads((page.stage / "errors.json").read_text())["nodes"]
    told = page.text("#details")
    assert f"QUANTIZED: {sum(n['scale'] is not None for n in measured)} TENSORS" in told
    assert len(page.all("#details .i-quantize")) == len(decided["int8_copies"])
    rule = page.all("#details .i-kept")[0].text
    assert rule.startswith("output layer\nconv2")
    assert "Policy(keep_output_layer=False)" in rule
    page.all("#details .i-quantize a")[0].click()
    assert "makes integers" in page.text("#details")


def test_a_click_keeps_the_details(page):
    page.one("#fit").click()
    name = page.one(".node.p-kept").get_attribute("data-name")
    page.box(name).click()
    page.rest()
    assert page.text("#details h3") == name
    assert page.box(name).get_attribute("class").split()[-1] == "on"
    page.one("#details .node-link").click()
    assert page.text("#details h3") != name


@BOTH
def test_search(page):
    from selenium.webdriver import Keys

    box = page.one("#search")
    box.send_keys("output layer")
    hits = [name.text for name in page.all("#hits li:not(.none) .mono")]
    decided = json.loads((page.stage / "reasons.json").read_text())["decisions"]
    assert set(hits) == {d["node"] for d in decided if "output layer" in d["reason"]}
    assert set(page.values(".node.hit", "data-name")) == set(hits)
    box.send_keys(Keys.ENTER)
    page.rest()
    assert page.text("#details h3") == hits[0]
    box.clear()
    box.send_keys("_scale")  # left out of the drawing, drawn when it is picked
    box.send_keys(Keys.ENTER)
    assert page.one("#all").is_selected()
    assert page.box(page.text("#details h3"))
    box.clear()
    box.send_keys("no such node")
    assert "nothing found" in page.text("#hits")


def test_the_table_of_decisions_can_be_filtered(page):
    from selenium.webdriver.support.ui import Select

    decisions = json.loads((page.stage / "reasons.json").read_text())["decisions"]
    page.one('#tabs button[data-tab="decisions"]').click()

    def rows():
        return [r.text for r in page.all("#decisions tbody tr")]

    assert len(rows()) == sum(d["action"] in ("quantized", "kept") for d in decisions)
    Select(page.one("#decisions select[data-filter=half]")).select_by_value("backward")
    Select(page.one("#decisions select[data-filter=action]")).select_by_value("kept")
    expected = [d for d in decisions if d["action"] == "kept" and d["half"] == "backward"]
    assert len(rows()) == len(expected)
    assert all("kept" in row and "backward" in row for row in rows())
    page.one('#passes button[data-pass="joint"]').click()
    page.one('#tabs button[data-tab="decisions"]').click()
    link = page.all("#decisions tbody tr a")[0]
    assert link.text == expected[0]["node_after"]
    link.click()
    page.rest()
    assert page.text("#details h3") == expected[0]["node_after"]
    assert page.one("#passes button.on").get_attribute("data-pass") == "schedule"
    page.one('#tabs button[data-tab="decisions"]').click()
    page.all("#decisions tbody tr")[0].click()
    page.rest()
    assert page.text("#details h3") == expected[0]["node"]
    assert page.one("#graph").is_displayed()


def test_nothing_is_fetched(page):
    html = (page.stage / "index.html").read_text()
    assert not re.search(r"""(src|href)=["'](?!data:|\.\./\.\./index\.html)""", html)
    assert "import(" not in html
    assert not re.search(r"https?://(?!www\.w3\.org/)", html)


def test_zoom_pan_and_theme(page):
    def transform():
        return page.one("#scene").get_attribute("transform")

    at_first = transform()
    page.one("#in").click()
    zoomed = transform()
    assert zoomed != at_first
    from selenium.webdriver import ActionChains

    empty = page.one("#canvas")
    ActionChains(page.browser).move_to_element_with_offset(empty, -300, 300).click_and_hold().move_by_offset(
        40, -60
    ).release().perform()
    assert transform() != zoomed
    theme = page.one("html").get_attribute("data-theme")
    page.one("#theme").click()
    assert page.one("html").get_attribute("data-theme") != theme


def entry_page(browser, folder: Path) -> Page:
    shown = Page(browser, folder / "index.html")
    assert not re.search(r"""(src|href)=["'](?!data:|variant)""", (folder / "index.html").read_text())
    return shown


def test_the_entry_page_leads_to_every_variant_and_back(browser, dumped):
    _, variant = dumped("gat")
    folder = variant.parent
    entry = entry_page(browser, folder)
    assert len(entry.all("section")) == len(list(folder.glob("variant*")))
    stage = entry.one(".stage")
    assert "of 22 primitives compute in int8" in stage.text.replace("\n", " ")
    assert "output layer: no primitive follows" in stage.text
    stage.find_element("css selector", "h3 a").click()
    assert entry.text("#model") == "GAT"
    assert len(entry.all(".node")) > 10
    entry.one("header .title a").click()
    assert entry.text("h1") == "GAT"
    for link in [a.get_attribute("href") for a in entry.all("a")]:
        assert Path(link.removeprefix("file://")).is_file()
    assert entry.errors() == []


def test_the_entry_page_shows_islands_between_stages(browser, dumped):
    _, variant = dumped("island")
    entry = entry_page(browser, variant.parent)
    shown = [item.get_attribute("class") for item in entry.all("ol > li")]
    assert shown == ["stage", "island", "stage"]
    assert "runs eagerly" in entry.text(".island h3")
    assert len(entry.text(".island p")) > 10
    assert [a.text for a in entry.all(".stage h3 a")] == [f"Stage {i}: open the graph →" for i in (1, 2)]
    assert entry.errors() == []
