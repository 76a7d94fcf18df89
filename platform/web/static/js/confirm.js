// Forms with data-confirm ask before they are sent: a heading, a sentence, and the button's own words.

const dialog = document.getElementById("confirm-dialog");
let asking = null;

function ask(form) {
  asking = form;
  document.getElementById("confirm-heading").textContent = form.dataset.confirm;
  document.getElementById("confirm-words").textContent = form.dataset.words;
  document.getElementById("confirm-yes").textContent = form.dataset.yes;
  dialog.returnValue = "no";
  dialog.showModal();
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-confirm]")) return;
  event.preventDefault();
  ask(event.target);
});
dialog.addEventListener("close", () => {
  // submit() raises no event, so nothing asks again.
  if (dialog.returnValue === "yes") asking.submit();
});
