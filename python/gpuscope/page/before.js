// Runs before drawing: sets the chosen theme, and marks that JavaScript is available.
document.documentElement.classList.add("js");
try {
  const kept = localStorage.getItem("gpuscope-theme");
  if (kept) document.documentElement.dataset.theme = kept;
} catch { /* a page without storage */ }
