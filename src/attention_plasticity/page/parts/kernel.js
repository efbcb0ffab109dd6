// The card "Logit by distance": the mean logit of the selected head, and the rotary kernel, which its mean query and mean key give alone.

import { byId, make, plain, show } from "./words.js";
import { rowsOfHead } from "./data.js";
import { theme } from "./colours.js";
import { showHeadValue } from "./values.js";
import { baseAxis, CHART_MARGIN, draw, intervalTraces, savedCharts } from "./charts.js";

/** Distances, mean logits and kernel of a head. Both have mean 0 over bins, because a constant does not change attention. */
function kernelOf(run, key) {
  const rows = rowsOfHead(run, "kernel", key);
  const centred = (values) => {
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return values.map((value) => value - mean);
  };
  return { x: rows.distance, logit: centred(rows.mean_logit), half: rows.mean_logit_half_width ?? [], kernel: centred(rows.kernel) };
}

function kernelFigure(run, key, other) {
  const line = (of, color, dash, name) => {
    const { x, logit, half } = kernelOf(of, key);
    return [
      ...intervalTraces(`interval of the ${name}`, x, { plasticity: logit, half_width: half }, color),
      {
        x, y: logit, name, mode: "lines+markers", line: { color, width: 2, dash }, marker: { color, size: 4 },
        text: x.map((_, i) => (Number.isFinite(half[i]) ? ` ± ${show(half[i])}` : "")), hovertemplate: `<b>%{y:.3~g}</b>%{text} ${name}<extra></extra>`,
      },
    ];
  };
  const { x, kernel } = kernelOf(run, key);
  return {
    traces: [
      ...line(run, theme.one, "solid", "mean logit"), ...(other ? line(other, theme.two, "dash", `mean logit, ${plain(other.label)}`) : []),
      { x, y: kernel, name: "rotary kernel", mode: "lines", line: { color: theme.ink, width: 1.5, dash: "dot" }, hovertemplate: "%{y:.3~g} rotary kernel<extra></extra>" },
    ],
    names: { x: "distance from query to key (tokens)", y: "logit, without its mean" },
    layout: {
      margin: CHART_MARGIN, hovermode: "x unified", hoverdistance: -1,
      xaxis: { ...baseAxis(), type: "log", showgrid: false, showline: true, ticks: "outside", ticklen: 4, dtick: 1, tickformat: ",d" },
      yaxis: { ...baseAxis(), nticks: 6, zeroline: true, zerolinecolor: theme.line },
    },
  };
}

export const kernelCard = {
  id: "kernel", title: "Logit by distance", place: "below", needs: ["kernel"], image: "chart of the logit by distance",
  help: ["kernel", "distance", "beforeRope", "interval"],
  body: `
    <figcaption><span class="keys" id="kernel-keys"></span></figcaption>
    <div class="chart profile" id="kernel" role="img" aria-label="Mean logit of this head by distance, and the rotary kernel"></div>`,
  drawHead({ run, beside, key }) {
    const other = beside?.ranges.kernel?.has(key) ? beside : null;
    byId("kernel-note").textContent = `R² of the rotary kernel: ${showHeadValue(run, key, "kernel_R2")}`;
    const entries = [["mean logit, 95 % interval", theme.one, ""], ["rotary kernel", theme.ink, "dotted"], ...(other ? [[`mean logit, ${other.label}`, theme.two, "dashed"]] : [])];
    byId("kernel-keys").replaceChildren(...entries.map(([text, colour, kind]) => {
      const line = make("i", "", { class: kind });
      line.style.borderColor = colour;
      return make("span", "", {}, [line, text]);
    }));
    savedCharts.kernel = () => ({ run, name: `kernel-l${key.replace(".", "h")}`, size: { width: 760, height: 430 }, figure: () => kernelFigure(run, key, other) });
  },
  drawCharts: ({ run, beside, key }) => [draw("kernel", kernelFigure(run, key, beside?.ranges.kernel?.has(key) ? beside : null))],
};
