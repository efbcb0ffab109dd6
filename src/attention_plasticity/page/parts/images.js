// Charts as SVG and PNG: white, with axis titles and a legend, in one size on every screen.

const IMAGE_FONT = "Helvetica, Arial, sans-serif", PNG_SCALE = 2;

/** A chart: its figure, its size in pixels, and the end of its file name. */
function chartImage(id) {
  const run = runShown(), other = otherRun(), key = keyOf(state.layer, state.head), head = `l${state.layer}h${state.head}`;
  if (id.startsWith("map-")) {
    const shown = mapRuns(), of = shown[Number(id.slice(4))], size = mapImageSize(of);
    return { run: of, name: `map-${state.metric}`, size, figure: () => mapFigure(of, state.metric, scaleOf(state.metric, shown), size) };
  }
  const size = { cells: { width: 600, height: 520 }, components: { width: 600, height: 400 }, bands: { width: 600, height: 460 } }[id] ?? { width: 760, height: 430 };
  const figures = {
    profile: () => profileFigure(run, other, key, size.width),
    cells: () => cellsFigure(run, key),
    components: () => componentsFigure(run, key),
    bands: () => bandsFigure(run, key),
    attention: () => attentionFigure(run, other, key, size.width),
    runs: () => runsFigure(size.width),
  };
  return { run: id === "runs" ? null : run, name: id === "runs" ? "profiles" : `${id}-${head}`, size, figure: figures[id] };
}

const mapImageSize = (run) => ({ width: Math.min(1400, Math.max(420, 26 * run.grid[1] + 160)), height: Math.min(1400, Math.max(280, 17 * mapLayers().length + 90)) });

/** The figure for paper: the light theme, a white background, axis titles, a legend or a bar of colours. */
function paperFigure({ figure, size }) {
  const { traces: [first, ...rest], layout, names, bar, note } = withTheme("light", figure);
  const axis = (of, text, below = "") => ({
    ...of, color: "#1d2126", linecolor: "#5d6570", tickcolor: "#5d6570", automargin: true,
    ...(text ? { title: { text: plain(text) + (below && `<br><sub>${below}</sub>`), standoff: 8 } } : {}),
  });
  return {
    data: [{ ...first, ...(bar ? colourBar(bar) : {}) }, ...rest],
    layout: {
      ...withTheme("light", baseLayout), ...layout, ...size, paper_bgcolor: "#fff", plot_bgcolor: "#fff",
      font: { family: IMAGE_FONT, size: 13, color: "#1d2126" }, margin: { l: 60, r: 18, t: 14, b: 50 },
      showlegend: !bar && rest.some((trace) => trace.name), legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
      xaxis: axis(layout.xaxis, names.x, note), yaxis: axis(layout.yaxis, names.y),
      ...(layout.yaxis2 ? { yaxis2: axis(layout.yaxis2) } : {}),
    },
  };
}

/** A bar of colours with numbers, or with one name per class. */
function colourBar({ label, classes }) {
  const ticks = classes ? { tickvals: classes.map((_, i) => i), ticktext: classes.map(plain) } : {};
  return { showscale: true, colorbar: { thickness: 12, outlinewidth: 0, title: { text: plain(label), side: classes ? "top" : "right" }, ...ticks } };
}

/** Draw the chart again for paper, and save it. */
async function saveImage(id, format) {
  const image = chartImage(id), { data, layout } = paperFigure(image);
  const uri = await Plotly.toImage({ data, layout, config: PLOT_CONFIG }, { format: "svg", ...image.size });
  const svg = decodeURIComponent(uri.slice(uri.indexOf(",") + 1));
  const name = `${image.run ? slug(image.run.label) : "runs"}-${image.name}.${format}`;
  save(name, format === "svg" ? new Blob([svg], { type: "image/svg+xml" }) : await pngOf(svg, image.size));
}

async function pngOf(svg, { width, height }) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await picture.decode();
  const canvas = make("canvas", "", { width: PNG_SCALE * width, height: PNG_SCALE * height });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

/** Two buttons for a chart. */
function imageButtons(id, what) {
  const buttons = ["svg", "png"].map((format) => {
    const button = make("button", format.toUpperCase(), { type: "button", class: "image", "data-image": `${id}.${format}`, "aria-label": `Download the ${what} as ${format.toUpperCase()}`, title: `Download the ${what} as ${format.toUpperCase()}` });
    button.addEventListener("click", () => saveImage(id, format));
    return button;
  });
  return make("span", "", { class: "images" }, buttons);
}

function addImageButtons() {
  for (const place of document.querySelectorAll("[data-images]")) place.replaceChildren(imageButtons(place.dataset.images, place.dataset.what));
}
