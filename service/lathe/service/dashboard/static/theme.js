// Light or dark: as the system says, or as the button in the header was set. Loaded before the page is
// painted, so that it does not flash in the other one. The choice is all this page ever stores.

const THEMES = ["auto", "light", "dark"];

/** Show a theme; what is none means auto. */
function applyTheme(theme) {
  const known = THEMES.includes(theme) ? theme : "auto";
  document.documentElement.dataset.theme = known;
  return known;
}

/** What was chosen before; a browser may refuse to tell. */
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
    button.textContent = `theme: ${document.documentElement.dataset.theme}`;
  };
  label();
  button.addEventListener("click", () => {
    const next = applyTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
    label();
    try {
      localStorage.setItem("lathe-theme", next);
    } catch {
      // private windows: the choice lasts as long as the page
    }
  });
});
