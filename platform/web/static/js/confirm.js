// Forms with data-confirm ask before they are sent: a heading, a sentence, and the button's own words.

const dialog = document.getElementById("confirm-dialog");
let asking = null;

// Where a list says what is to be done, each choice has its own words; empty: there is nothing to ask.
function wordsOf(form) {
  return (form.querySelector("option[data-words]:checked") ?? form).dataset.words;
}

function ask(form) {
  asking = form;
  document.getElementById("confirm-heading").textContent = form.dataset.confirm;
  document.getElementById("confirm-words").textContent = wordsOf(form);
  document.getElementById("confirm-yes").textContent = form.dataset.yes;
  dialog.returnValue = "no";
  dialog.showModal();
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-confirm]") || !wordsOf(event.target)) return;
  // What is typed wrong is for the server to say.
  const typed = event.target.querySelector("[data-expected]");
  if (typed && typed.value.trim() !== typed.dataset.expected) return;
  event.preventDefault();
  ask(event.target);
});
dialog.addEventListener("close", () => {
  // submit() raises no event, so nothing asks again.
  if (dialog.returnValue === "yes") asking.submit();
});
