// Runs before the first paint: the chosen theme, or the system's where none was chosen.
const chosen = localStorage.getItem("theme");
if (chosen) document.documentElement.dataset.theme = chosen;
