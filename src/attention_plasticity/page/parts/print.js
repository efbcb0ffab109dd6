// Printing: light colours, and the layout of the window, because charts have been drawn for its width.

const A4 = 297 / 210; // height / width
let undoPrint = [];

/** Rules of the style sheet for narrow windows. */
const widthRules = () => [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules])
  .filter((rule) => rule.media?.mediaText.includes("max-width"));

function preparePrint() {
  endPrint();
  const width = document.documentElement.clientWidth;
  const paper = make("style", `@page { size: ${width}px ${Math.round(width * A4)}px; margin: 0; }`);
  document.head.append(paper);
  undoPrint.push(() => paper.remove());
  for (const { media } of widthRules()) { // browsers compare them with the usual paper, not with this one
    const text = media.mediaText;
    media.mediaText = matchMedia(text).matches ? "all" : "not all";
    undoPrint.push(() => { media.mediaText = text; });
  }
  if (document.documentElement.dataset.theme === "dark") {
    applyTheme("light");
    drawAll();
    undoPrint.push(() => { applyTheme(savedTheme()); drawAll(); });
  }
}

function endPrint() {
  for (const undo of undoPrint) undo();
  undoPrint = [];
}
