// Formulas are set by KaTeX, which is part of the site: nothing is fetched from elsewhere.
document.querySelectorAll(".arithmatex").forEach((node) => {
  const text = node.textContent.trim();
  const display = text.startsWith("\\[");
  katex.render(text.slice(2, -2), node, { displayMode: display, throwOnError: false });
});
