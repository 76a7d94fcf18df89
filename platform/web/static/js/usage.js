// The usage page's charts: drawn again whenever the filters have brought other sums.

import { drawChart } from "./charts.js";
import { url } from "./server.js";

let shown = null;

async function refresh() {
  const sums = document.getElementById("usage");
  if (!sums || sums === shown) return;
  shown = sums;
  if (sums.dataset.any !== "yes") return;
  const answer = await fetch(sums.dataset.points, { headers: { accept: "application/json" } });
  if (answer.status === 401) location.href = url("/login");
  if (answer.ok && sums === shown) draw(await answer.json());
}

function draw(points) {
  drawChart(document.getElementById("tokens-chart"), points.at, [
    { label: "Total", unit: "tokens", values: points.prompt_tokens.map((count, i) => count + points.completion_tokens[i]), bars: true },
    ...(shown.dataset.writes === "yes" ? [{ label: "Output", unit: "tokens", values: points.completion_tokens, bars: true, colour: "--good" }] : []),
  ]);
  drawChart(document.getElementById("requests-chart"), points.at, [
    { label: "Requests", values: points.requests, bars: true },
    { label: "Errors", values: points.errors, bars: true, colour: "--bad" },
  ]);
}

new MutationObserver(refresh).observe(document.getElementById("main"), { childList: true, subtree: true });
refresh();
