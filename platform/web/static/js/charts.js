// Charts drawn by uPlot, each with a table of the same numbers for those who do not see it.

const drawn = new Map();
const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const chart = drawn.get(target);
    chart?.setSize({ width: target.clientWidth, height: chart.height });
  }
});
const AXIS_FONT = "11px system-ui, sans-serif";
const HEIGHT = 150;
// Half of the last time beside the axis stands right of its tick.
const LABEL_ROOM = 28;
const SPARK_HEIGHT = 36;
// Longest edge of time that is shown as a clock with seconds.
const HOUR = 3600;
const DAY = 86400;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY, 364 * DAY];

// What is counted has no halves.
const COUNTS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();

// Beyond two days a time is a day of UTC.
function clock(seconds, span, timeZone) {
  if (span >= 2 * DAY) return new Date(seconds * 1000).toLocaleDateString([], { day: "numeric", month: "short", timeZone: "UTC" });
  const options = span > HOUR ? { hour: "2-digit", minute: "2-digit" } : { hour: "2-digit", minute: "2-digit", second: "2-digit" };
  return new Date(seconds * 1000).toLocaleTimeString([], { ...options, timeZone });
}

// What stands below a chart while one points at it.
function pointedAt(seconds, span) {
  return span >= 2 * DAY ? `${clock(seconds, span)} UTC` : `${clock(seconds, span)} (${clock(seconds, span, "UTC")} UTC)`;
}

function number(value, unit) {
  if (value === null || value === undefined) return "–";
  const digits = Math.abs(value) < 10 && !Number.isInteger(value) ? 1 : 0;
  return `${value.toLocaleString("en", { maximumFractionDigits: digits })}${unit ? `\u00a0${unit}` : ""}`;
}

// What fits beside an axis.
function tickWords(value, unit) {
  if (unit === "ms" && value >= 1000) return number(value / 1000, "s");
  return value < 10000 ? number(value, unit) : value.toLocaleString("en", { notation: "compact" });
}

// Seconds only where the ticks are nearer to one another than minutes.
function tickTimes(ticks, span) {
  const whole = ticks.every((tick) => tick % 60 === 0);
  return ticks.map((tick) => clock(tick, whole ? Math.max(span, HOUR + 1) : span));
}

// CSS knows the theme; a canvas has to be told.
function paint(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function sparkOptions(element) {
  // Asked at each drawing: the colour may change with the numbers.
  const stroke = () => paint(element.lastDrawn[1][0].colour);
  return {
    width: element.clientWidth,
    height: SPARK_HEIGHT,
    padding: [3, 1, 3, 1],
    cursor: { show: false },
    legend: { show: false },
    scales: { x: { time: false }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), high || 1] } },
    axes: [{ show: false }, { show: false }],
    series: [{}, { stroke, width: 1.5, spanGaps: true, points: { show: false }, fill: () => `color-mix(in srgb, ${stroke()} 12%, transparent)` }],
  };
}

// Bars that count different things stand side by side; those that are a part of others lie on them.
function barsOf({ side = 0 }) {
  return window.uPlot.paths.bars({ size: [side ? 0.35 : 0.7, 40], align: side });
}

function fullOptions(element, times, series) {
  const [muted, line] = [paint("--muted"), paint("--line")];
  const axis = { stroke: muted, font: AXIS_FONT, grid: { stroke: line, width: 1 }, ticks: { show: false } };
  const span = times.at(-1) - times[0];
  // Bars stand around their times, so the first and the last need room.
  const room = series[0].bars && times.length > 1 ? (times[1] - times[0]) / 2 : 0;
  return {
    width: element.clientWidth,
    height: HEIGHT,
    padding: [8, LABEL_ROOM, 0, 0],
    cursor: { drag: { x: false, y: false } },
    scales: { x: { time: false, range: (_, low, high) => [low - room, high + room] }, y: { range: (_, low, high) => [0, Math.max(1.05 * (high || 0), Number(element.dataset.most) || 1)] } },
    axes: [
      { ...axis, size: 26, space: 80, incrs: STEPS, values: (_, ticks) => tickTimes(ticks, span) },
      { ...axis, size: 56, space: 36, incrs: series[0].bars ? COUNTS : undefined, values: (_, ticks) => ticks.map((tick) => tickWords(tick, series[0].unit === "tokens" ? "" : series[0].unit)) },
    ],
    series: [
      { label: "Time", value: (_, value, __, at) => (Number.isInteger(at) ? pointedAt(value, span) : "") },
      ...series.map((one) => ({
        label: one.label,
        stroke: paint(one.colour ?? "--accent"),
        fill: one.bars ? paint(one.colour ?? "--accent") : undefined,
        width: one.bars ? 0 : 1.5,
        paths: one.bars ? barsOf(one) : undefined,
        spanGaps: true,
        points: { show: one.dots ?? false, size: 4 },
        value: (_, value, __, at) => (Number.isInteger(at) ? number(value, one.unit) : ""),
      })),
    ],
  };
}

function fillTable(details, times, series) {
  if (!details?.open) return;
  const span = times.at(-1) - times[0];
  const head = ["Time", ...series.map((one) => one.label)].map((words) => cell("th", words));
  const rows = times.map((time, i) => rowOf([timeCell(time, span), ...series.map((one) => cell("td", number(one.values[i], one.unit)))]));
  const table = details.querySelector("table");
  table.tHead.replaceChildren(rowOf(head));
  table.tBodies[0].replaceChildren(...rows.reverse());
}

function cell(tag, words) {
  return Object.assign(document.createElement(tag), { textContent: words });
}

// Pages give each `time` a title with UTC.
function timeCell(seconds, span) {
  const time = Object.assign(document.createElement("time"), { dateTime: new Date(seconds * 1000).toISOString(), textContent: clock(seconds, span) });
  const place = document.createElement("td");
  place.append(time);
  return place;
}

function rowOf(cells) {
  const row = document.createElement("tr");
  row.append(...cells);
  return row;
}

// series: [{label, unit, values, colour?, bars?, side?, dots?}]; `times` in Unix seconds. Called again with newer numbers it moves.
export function drawChart(element, times, series) {
  const known = drawn.get(element);
  const data = [times, ...series.map((one) => one.values)];
  element.lastDrawn = [times, series];
  if (known) known.setData(data);
  else {
    const options = element.dataset.chart === "spark" ? sparkOptions(element) : fullOptions(element, times, series);
    drawn.set(element, new window.uPlot(options, data, element));
    widths.observe(element);
  }
  drawTable(element.dataset.table, times, series);
}

export function drawTable(id, times, series) {
  const details = id ? document.getElementById(id) : null;
  if (!details) return;
  fillTable(details, times, series);
  details.ontoggle = () => fillTable(details, times, series);
}

// The points of the live state: one for each five seconds, the last one now.
export function liveTimes(count) {
  const now = Math.round(Date.now() / 1000);
  return Array.from({ length: count }, (_, i) => now - 5 * (count - 1 - i));
}

document.addEventListener("themechange", () => {
  // A copy: a map shows its reader what is added meanwhile, for ever.
  for (const [element, chart] of [...drawn]) {
    chart.destroy();
    drawn.delete(element);
    if (element.isConnected) drawChart(element, ...element.lastDrawn);
  }
});
