"""What tests of the page in a browser share: wait until it is drawn, and read what it shows."""

from contextlib import contextmanager

import numpy as np

from attention_plasticity.page import make_report
from attention_plasticity.tables.intervals import mean_half_width, mean_over_heads
from qk_toolkit import formatting
from waiting import PATIENCE

READY = "html[data-state=ready]"
FEW = "the rows come from fewer than 4 groups of texts"
WITHOUT_ATTENTION = (4, 5)  # a head of the run `full`
SCRIPT = "</script><script>document.title = 'attacked'</script>"
EVIL = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>"
"""The label and the model of the run with `HOSTILE` tokens."""
WARNINGS = (
    "Fewer than 32 queries in query buckets 5-7 (positions 640-1,023), in 12 of 36 heads.",
    f"Fewer than 4 texts in {EVIL}.",
)
"""Warnings of the run `bucket`."""
IMAGE = "<img src=x onerror=\"document.title='attacked'\">"
HOSTILE = {" the": SCRIPT, "\n": IMAGE, "whale": "\u202eabc"}
"""Tokens of the run `EVIL`, in place of those of other runs."""


def new_page(context):
    """A page that waits as long as all tests for what must come."""
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    return page


@contextmanager
def open_report(browser, path):
    """The report at `path` in a window of a laptop, without a network."""
    with browser.new_context(viewport={"width": 1366, "height": 768}, offline=True) as context:
        page = new_page(context)
        page.goto(path.as_uri())
        yield page


@contextmanager
def open_runs(browser, folder, runs):
    """A report of several runs, named by label, in `folder`."""
    path = make_report(list(runs.values()), labels=list(runs)).save(folder / "report.html")
    with open_report(browser, path) as page:
        yield page


@contextmanager
def without_errors(page):
    """Check that the page reports no error, writes nothing to the console and fetches nothing."""
    wrong = []

    def on_error(error):
        wrong.append(str(error))

    def on_message(message):
        wrong.append(message.text)

    def on_request(request):
        if not request.url.startswith(("file:", "data:", "blob:")):
            wrong.append(request.url)

    page.on("pageerror", on_error)
    page.on("console", on_message)
    page.on("request", on_request)
    yield
    page.remove_listener("pageerror", on_error)
    page.remove_listener("console", on_message)
    page.remove_listener("request", on_request)
    assert wrong == []


def show(page, address):
    """Follow a link to the page, also to the address that it has already."""
    page.wait_for_selector(READY)
    page.evaluate("document.documentElement.dataset.state = 'asked'")
    page.evaluate(
        """address => {
            history.replaceState(null, "", "#" + address);
            dispatchEvent(new HashChangeEvent("hashchange", { newURL: location.href }));
        }""",
        address,
    )
    page.wait_for_selector(READY)


def settled(page):
    frame = "new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
    page.evaluate(f"{frame}.then(() => {frame})")
    page.wait_for_selector(READY)


def data_of(page, chart):
    """The traces as they were given to Plotly; NaN comes as None."""
    code = "id => JSON.parse(JSON.stringify(document.getElementById(id).data))"
    return page.evaluate(code, chart)


def with_half(value, half):
    """A value and half of its 95 % interval, as the page shows them."""
    return formatting.with_half(value, half).replace("-", "−")


def mean_text(run, name):
    """A mean over heads of a run, as the page shows it."""
    mean = mean_over_heads(run, name)
    return with_half(mean.value, mean_half_width(mean))


def of_head(table, layer, head):
    return table[(table["layer"] == layer) & (table["q_head"] == head)].reset_index(drop=True)


def singles(values):
    return values.astype(np.float32).astype(float).tolist()


def first_rows(page, count):
    return page.locator("tr.row td:first-child").all_text_contents()[:count]
