// Light or dark theme: that of the system, or the one chosen with the button in the header. This file is loaded before
// the page is painted, so that it does not flash. The choice is all that the page stores.

const THEMES = ["auto", "light", "dark"];

/** Apply a theme; anything unknown means auto. */
function applyTheme(theme) {
  const known = THEMES.includes(theme) ? theme : "auto";
  document.documentElement.dataset.theme = known;
  return known;
}

/** Return the stored choice; some browsers refuse access. */
function storedTheme() {
  try {
    return localStorage.getItem("lathe-theme");
  } catch {
    return null;
  }
}

applyTheme(storedTheme());

document.addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  const label = () => {
    button.textContent = `Theme: ${document.documentElement.dataset.theme}`;
  };
  label();
  button.addEventListener("click", () => {
    const next = applyTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
    label();
    try {
      localStorage.setItem("lathe-theme", next);
    } catch {
      // In a private window the choice lasts as long as the page.
    }
  });
});
