// The bar that offers to undo the last change goes when its time is over.

const bar = document.getElementById("undo");
if (bar) setTimeout(() => bar.remove(), 1000 * Number(bar.dataset.seconds));
