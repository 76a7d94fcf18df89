// Answers as tokens with log-probabilities, and how they differ from the first pane's.

const SHADES = [0.1, 0.5, 2];
const MOST_ROWS = 500;

export class Tokens {
  constructor(model, output) {
    this.model = model;
    this.list = [];
    this.output = output;
    this.untold = 0;
  }

  // Text as it comes, with the tokens behind it; held-back text comes with more than one. Reasoning is `thought`.
  add(text, logprobs, thought) {
    const found = entriesOf(logprobs);
    this.list.push(...found);
    this.untold += found.length;
    if (!text) return;
    const span = Object.assign(document.createElement("span"), { textContent: text });
    span.dataset.first = this.list.length - this.untold;
    span.dataset.last = this.list.length;
    if (thought) span.dataset.thought = "yes";
    this.untold = 0;
    this.output.append(span);
  }

  // Without the reasoning.
  get answer() {
    const spans = [...this.output.children].filter((span) => !span.dataset.thought);
    return spans.map((span) => span.textContent).join("");
  }
}

// The chat form has a list of objects, the legacy form parallel lists.
function entriesOf(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) return logprobs.content.map(({ token, logprob }) => ({ token, logprob }));
  return (logprobs.tokens ?? []).map((token, i) => ({ token, logprob: logprobs.token_logprobs[i] }));
}

// Up to where two answers are the same, they have seen the same text: only there log-probabilities can be compared.
function partingOf(one, other) {
  const length = Math.min(one.list.length, other.list.length);
  for (let i = 0; i < length; i++) if (one.list[i].token !== other.list[i].token) return i;
  return length;
}

export function shadeAll([reference, ...others]) {
  for (const tokens of others) {
    const parting = partingOf(reference, tokens);
    for (const span of tokens.output.children) shade(span, tokens, reference, parting);
  }
}

function shade(span, tokens, reference, parting) {
  const [first, last] = [Number(span.dataset.first), Number(span.dataset.last)];
  const places = Array.from({ length: last - first }, (_, i) => first + i);
  const differences = places.filter((i) => i < parting).map((i) => Math.abs(tokens.list[i].logprob - reference.list[i].logprob));
  const most = Math.max(0, ...differences);
  span.dataset.shade = SHADES.filter((limit) => most >= limit).length;
  span.className = first <= parting && parting < last && parting < reference.list.length ? "parting" : "";
  span.title = places.map((i) => words(tokens, reference, i, parting)).join("\n");
}

function words(tokens, reference, i, parting) {
  const { token, logprob } = tokens.list[i];
  const mine = `${JSON.stringify(token)} ${logprob.toFixed(2)}`;
  if (i > parting || i >= reference.list.length) return mine;
  const other = reference.list[i];
  return i === parting ? `${mine}; ${reference.model}: ${JSON.stringify(other.token)} ${other.logprob.toFixed(2)}` : `${mine}; ${reference.model}: ${other.logprob.toFixed(2)}`;
}

export function fillTokenTable(details, answers) {
  if (!details.open) return;
  const table = details.querySelector("table");
  const rows = Math.min(MOST_ROWS, Math.max(...answers.map(({ list }) => list.length)));
  const partings = answers.map((tokens) => partingOf(answers[0], tokens));
  const head = ["", ...answers.flatMap(({ model }, i) => (i ? [model, "nats", "difference"] : [model, "nats"]))];
  table.tHead.replaceChildren(rowOf("th", head));
  table.tBodies[0].replaceChildren(
    ...Array.from({ length: rows }, (_, i) => rowOf("td", [`${i + 1}`, ...answers.flatMap((tokens, pane) => cells(answers, tokens, pane, i, partings))])),
  );
}

function cells(answers, { list }, pane, i, partings) {
  const entry = list[i];
  if (!entry) return pane ? ["", "", ""] : ["", ""];
  const mine = [JSON.stringify(entry.token), entry.logprob.toFixed(3)];
  if (!pane) return mine;
  const difference = i < partings[pane] ? entry.logprob - answers[0].list[i].logprob : null;
  return [...mine, difference === null ? "–" : `${difference >= 0 ? "+" : ""}${difference.toFixed(3)}`];
}

function rowOf(tag, texts) {
  const row = document.createElement("tr");
  row.append(...texts.map((text) => Object.assign(document.createElement(tag), { textContent: text })));
  return row;
}
