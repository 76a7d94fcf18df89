// Runs before the first paint: the chosen theme, or the system's where none was chosen.
const chosenTheme = localStorage.getItem("theme");
if (chosenTheme) document.documentElement.dataset.theme = chosenTheme;
