// What every page has: the button that changes the theme.
import { byId } from "./dom.js";

const NEXT = { system: "dark", dark: "light", light: "system" };

function current() {
  return document.documentElement.dataset.theme ?? "system";
}

function name(button) {
  const theme = current();
  button.textContent = { system: "Auto", dark: "Dark", light: "Light" }[theme];
  button.setAttribute("aria-label", `Theme: ${button.textContent}. Change to ${NEXT[theme]}.`);
}

const button = byId("theme");
button.addEventListener("click", () => {
  const theme = NEXT[current()];
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("theme", theme); } catch { /* it lasts for this page only */ }
  name(button);
});
name(button);
