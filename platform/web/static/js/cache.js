// The cache page's live parts: block map, hit rate, loads and evictions, tiles.

import { drawBlocks } from "./blocks.js";
import { drawChart, liveTimes } from "./charts.js";
import { onLive } from "./live.js";
import { drawTiles } from "./tiles.js";

let lastState = null;

function drawHistory(cache) {
  const times = liveTimes(cache.loads.length);
  const ofBlocks = document.getElementById("prefix-chart");
  if (ofBlocks)
    drawChart(ofBlocks, times, [
      { label: "Hit rate", unit: "%", values: cache.hit_rate },
      { label: "Blocks in use", unit: "%", values: cache.blocks_used, colour: "--good" },
    ]);
  drawChart(document.getElementById("moves-chart"), times, [
    { label: "Loads", values: cache.loads, bars: true, side: -1 },
    { label: "Evictions", values: cache.evictions, bars: true, side: 1, colour: "--warn" },
  ]);
}

function draw(state) {
  lastState = state;
  drawBlocks(state.blocks);
  drawHistory(state.cache);
  drawTiles(state.residency);
}

onLive(draw);
document.addEventListener("themechange", () => lastState && drawBlocks(lastState.blocks));
addEventListener("resize", () => lastState && drawBlocks(lastState.blocks));
