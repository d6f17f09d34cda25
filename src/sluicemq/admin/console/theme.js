// Dark or light before the first paint: this one script is not a module, so that nothing is drawn
// in the other colours first. Without a choice of the person's the system's is followed (tokens.css).
"use strict";
try {
  const chosen = localStorage.getItem("sluicemq.theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // storage may be forbidden; then there is no choice to remember
}
