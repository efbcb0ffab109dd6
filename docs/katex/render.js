// Sets the formulas of a page. pymdownx.arithmatex puts them between \( and \) or \[ and \].
for (const element of document.querySelectorAll(".arithmatex")) {
  const source = element.textContent.trim();
  katex.render(source.slice(2, -2), element, {
    displayMode: source.startsWith("\\["),
    throwOnError: false,
  });
}
