// What the server refuses a part of a page.

import { reasonOf } from "./server.js";

function tell(words) {
  Object.assign(document.getElementById("trouble"), { textContent: words, hidden: !words });
}

// What asks again by itself tells nobody: the dot says whether the server is there.
function isAsked({ sourceEvent }) {
  return Boolean(sourceEvent?.isTrusted);
}

// A part of a page gives its place to no refusal, which is JSON, and to no proxy's error page: its next poll would go with it.
document.addEventListener("htmx:response:error", ({ detail: { ctx } }) => {
  const { status, headers } = ctx.response;
  if (headers.has("x-request-id") && headers.get("content-type")?.startsWith("text/html")) return;
  ctx.swap = "none";
  if (isAsked(ctx)) tell(reasonOf(ctx.text, status));
});
document.addEventListener("htmx:error", ({ detail: { ctx } }) => {
  if (ctx && isAsked(ctx)) tell("The server cannot be reached. Try again in a moment.");
});
document.addEventListener("htmx:before:request", ({ detail: { ctx } }) => {
  if (isAsked(ctx)) tell("");
});
