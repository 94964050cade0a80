"use strict";
// Each figure is Plotly JSON in which colours and fonts are named as the style sheet's variables: var(--blue).
(() => {
  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    const narrow = window.innerWidth < 600;
    for (const source of document.querySelectorAll("script.figure")) {
      const text = source.textContent.replace(/var\((--[\w-]+)\)/g, (_, name) =>
        JSON.stringify(style.getPropertyValue(name).trim()).slice(1, -1));
      const { data, layout } = JSON.parse(text);
      if (narrow) layout.margin = { ...layout.margin, l: Math.min(layout.margin.l, 48), r: 8 };
      Plotly.react(source.previousElementSibling, data, layout, { responsive: true, displaylogo: false, displayModeBar: false });
    }
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
