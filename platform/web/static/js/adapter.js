// The charts of one adapter's page: requests by the hour, latency of the latest requests.

import { drawChart } from "./charts.js";
import { url } from "./server.js";

const REFRESH_MILLISECONDS = 5000;
const { points, writes } = document.getElementById("charts").dataset;

async function refresh() {
  try {
    const answer = await fetch(points, { headers: { accept: "application/json" } });
    if (answer.status === 401) location.href = url("/login");
    if (answer.ok) draw(await answer.json());
  } catch {
    // The live dot says that the server is away; what was drawn stays.
  }
  setTimeout(refresh, REFRESH_MILLISECONDS);
}

function draw({ hours, requests }) {
  drawChart(document.getElementById("traffic-chart"), hours.at, [
    { label: "Requests", values: hours.requests, bars: true },
    { label: "Errors", values: hours.errors, bars: true, colour: "--bad" },
  ]);
  const latency = document.getElementById("latency-chart");
  if (!requests.at.length) {
    latency.textContent = "No requests yet.";
    return;
  }
  if (latency.textContent === "No requests yet.") latency.textContent = "";
  // Without a text there is no first token.
  const first = { label: "Time to first token", unit: "ms", values: requests.first_token_ms, dots: true };
  const all = { label: "Total duration", unit: "ms", values: requests.duration_ms, dots: true, colour: "--warn" };
  drawChart(latency, requests.at, writes === "yes" ? [first, all] : [all]);
}

refresh();
