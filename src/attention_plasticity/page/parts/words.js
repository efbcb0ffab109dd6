// Numbers and names as text, and elements of the document.

export const MINUS = "−";
export const NONE = "–";

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const whole = (value) => GROUPED.format(value);

export function show(value) {
  if (!Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  let text;
  if (Number.isInteger(value) || size >= 1000) text = whole(size);
  else if (size < 0.001) text = size.toExponential(2);
  else text = size >= 100 ? size.toFixed(1) : size >= 10 ? size.toFixed(2) : size.toFixed(3);
  return value < 0 ? MINUS + text : text;
}

/** A value with a fixed number of decimals; without one, as `show` does it. */
export function showTo(decimals, value) {
  if (decimals === null || !Number.isFinite(value)) return show(value);
  const text = Math.abs(value).toFixed(decimals);
  return value < 0 && Number(text) ? MINUS + text : text;
}

export function showChange(value) {
  if (!Number.isFinite(value)) return NONE;
  const text = show(value);
  return value > 0 ? `+${text}` : text;
}

export const plural = (count, thing) => `${whole(count)} ${thing}${count === 1 ? "" : "s"}`;

export const headName = (layer, head) => `Layer ${layer} · head ${head}`;

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Escape text for Plotly, which interprets tags. */
export const plain = (text) =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** An element with text, attributes and children. Text is never interpreted as HTML. */
export function make(tag, text = "", attributes = {}, children = []) {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

/**
 * `0.6871 ± 0.0031`: half of an interval has two digits, and the value as many decimals. `text` if
 * one is not known.
 */
export function withHalf(text, value, half) {
  if (!Number.isFinite(value) || !Number.isFinite(half)) return text;
  const decimals = half === 0 ? 3 : Math.max(0, 1 - Number(half.toExponential(1).split("e")[1]));
  return `${showTo(decimals, value)} ± ${half.toFixed(decimals)}`;
}

/** A value and its interval as text that is not broken into two lines. */
export const unbroken = (text) => text.replaceAll(" ", "\u00a0");

/** An element with a value and, in quiet letters, half of its interval. */
export function fillEstimate(element, text) {
  const [value, half] = text.split(" ± ");
  const error = half ? [make("span", ` ± ${half}`, { class: "error" })] : [];
  element.replaceChildren(value, ...error);
  return element;
}

/** A line of a legend: a mark of a kind that page.css knows, and a text. */
export const legendEntry = (colour, text, kind = "") =>
  make("span", "", {}, [make("i", "", { class: kind, style: `color: ${colour}` }), text]);

/** A menu of [value, text, title] with one chosen value. */
export function fillMenu(menu, options, chosen) {
  menu.replaceChildren(
    ...options.map(([value, text, title]) =>
      make("option", text, { value, ...(title ? { title } : {}) }),
    ),
  );
  menu.value = chosen;
}

/**
 * Fill a table. The first cell of a row is its heading; a row can have attributes. Cells are texts,
 * whose half after `±` is quiet, or elements. A heading can have a meaning.
 */
export function fillTable(table, headings, rows) {
  const names = headings.map(([text, meaning]) =>
    make("th", text, { scope: "col", ...(meaning ? { title: meaning } : {}) }),
  );
  const cell = (content) =>
    content instanceof Element
      ? make("td", "", {}, [content])
      : fillEstimate(make("td"), content ?? "");
  const lines = rows.map(({ cells: [first, ...rest], ...attributes }) =>
    make("tr", "", attributes, [make("th", "", { scope: "row" }, [first]), ...rest.map(cell)]),
  );
  table.replaceChildren(
    make("thead", "", {}, [make("tr", "", {}, names)]),
    make("tbody", "", {}, lines),
  );
}
