// Before anything is drawn: the theme that the reader has chosen, and that there is JavaScript.
document.documentElement.classList.add("js");
try {
  const kept = localStorage.getItem("gpuscope-theme");
  if (kept) document.documentElement.dataset.theme = kept;
} catch { /* a page without storage */ }
