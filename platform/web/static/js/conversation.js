// The turns of the playground's conversation. What the page holds is kept in this tab, for this login only.

import { csrfHeader } from "./server.js";

const KEY = "playground";
const LOGIN = csrfHeader()["x-csrf-token"];

// turns: [{message, answers: {model: text}}]. A model goes on from its own answers; turns that it has none of are left out.
export function messagesFor(model, turns, system, message) {
  const said = turns
    .filter(({ answers }) => Object.hasOwn(answers, model))
    .flatMap((turn) => [
      { role: "user", content: turn.message },
      { role: "assistant", content: turn.answers[model] },
    ]);
  const first = system.trim() ? [{ role: "system", content: system }] : [];
  return [...first, ...said, { role: "user", content: message }];
}

export function remember(page) {
  try {
    sessionStorage.setItem(KEY, JSON.stringify({ login: LOGIN, ...page }));
  } catch {
    // It is larger than a tab may keep: better nothing than an older state.
    sessionStorage.removeItem(KEY);
  }
}

// null: nothing is kept, or by another login.
export function recall() {
  const page = JSON.parse(sessionStorage.getItem(KEY) ?? "null");
  return page?.login === LOGIN ? page : null;
}
